"""On a real CUDA device: where batches are, that they are right, and that pinned memory is lent, not copied."""

import pytest
import torch

import headrace

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.leaks_ok("the CUDA driver keeps descriptors and threads of its own"),
]


class Filled(torch.utils.data.Dataset):
    """Sample i is full of i."""

    def __init__(self, size=600, shape=(3, 64, 64)):
        self.size, self.shape = size, shape

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full(self.shape, float(index)), index


class TouchesCuda(Filled):
    def __getitem__(self, index):
        return torch.zeros(1, device="cuda").cpu(), index


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_on_the_device_and_are_right(in_order, workers):
    with headrace.DataLoader(
        Filled(), batch_size=32, num_workers=workers, in_order=in_order, device="cuda", persistent_workers=workers > 0
    ) as loader:
        for _ in range(3):
            seen = []
            for images, labels in loader:
                assert images.is_cuda
                assert labels.is_cuda
                # Work queued on the consumer's stream while later batches are copied into recycled memory.
                copied = images * 1.0 * 1.0 * 1.0
                assert torch.equal(copied.amin((1, 2, 3)), labels.float())
                assert torch.equal(copied.amax((1, 2, 3)), labels.float())
                seen += labels.tolist()
            assert sorted(seen) == list(range(600))


def test_kept_device_batches_stay_what_they_were():
    loader = headrace.DataLoader(Filled(), batch_size=32, num_workers=2, in_order=True, device="cuda:0")
    kept = list(loader)
    torch.cuda.synchronize()
    for number, (images, labels) in enumerate(kept):
        assert labels.tolist() == list(range(32 * number, min(600, 32 * number + 32)))
        assert torch.equal(images[:, 0, 0, 0], labels.float())


def test_pin_memory_lends_the_registered_slab():
    loader = headrace.DataLoader(Filled(), batch_size=32, num_workers=2, in_order=True, pin_memory=True)
    for images, labels in loader:
        assert images.is_pinned()
        assert labels.is_pinned()
        assert torch.equal(images.to("cuda", non_blocking=True)[:, 0, 0, 0].cpu(), labels.float())
    assert loader.stats().copied_out == 0


def test_resume_counts_batches_on_their_way_as_undelivered():
    def loader():
        return headrace.DataLoader(Filled(), batch_size=32, num_workers=2, in_order=False, device="cuda")

    first, before = loader(), []
    for number, (_, labels) in enumerate(first):
        before += labels.tolist()
        if number == 4:
            break
    second = loader()
    second.load_state_dict(first.state_dict())
    after = [label for _, labels in second for label in labels.tolist()]
    assert sorted(before + after) == list(range(600))


def test_custom_containers_reach_the_device():
    def collate(samples):
        return {"image": torch.stack([s[0] for s in samples]), "names": [str(s[1]) for s in samples]}

    loader = headrace.DataLoader(
        Filled(64), batch_size=32, num_workers=1, in_order=True, device="cuda", collate_fn=collate
    )
    for batch in loader:
        assert batch["image"].is_cuda
        assert batch["names"][0] in {"0", "32"}


def test_cuda_in_a_forked_worker_says_what_to_do():
    torch.zeros(1, device="cuda")
    loader = headrace.DataLoader(TouchesCuda(8), batch_size=4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="spawn"):
        next(iter(loader))
    loader = headrace.DataLoader(TouchesCuda(8), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == 2


def test_a_device_that_is_not_there():
    loader = headrace.DataLoader(Filled(8), device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(headrace.DeviceUnavailable, match="numbered from 0"):
        iter(loader)
