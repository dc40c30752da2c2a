"""On a real CUDA device: where batches are, that they are right, and that memory is not used again too early."""

import gc
from contextlib import suppress

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


class Fails(Filled):
    """Raises in the middle of the epoch: the error waits for batches that are on their way."""

    def __getitem__(self, index):
        if index == 300:
            raise ValueError("bad")
        return super().__getitem__(index)


class Collects(Filled):
    """Its workers collect the garbage that they inherited."""

    def __init__(self):
        super().__init__(64, (4,))

    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


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
                # Work queued on the trainer's stream while later batches are copied into recycled memory.
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


LONG = 100_000_000
"""Cycles of a kernel that keeps a stream busy for some fifty milliseconds, in which several batches are made."""


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
@pytest.mark.parametrize("shape", [(64,), (3, 64, 64), (3, 224, 224)], ids=["small", "medium", "large"])
@pytest.mark.parametrize("streams", [1, 3])
def test_pinned_tensors_may_be_let_go_before_their_copy_has_run(in_order, shape, streams):
    """Copies wait behind long kernels while their sources are dropped and many more batches are made."""
    dataset = Filled(1600 if len(shape) < 3 or shape[1] < 224 else 320, shape)
    side = [torch.cuda.Stream() for _ in range(streams - 1)]
    with headrace.DataLoader(
        dataset, batch_size=16, num_workers=8, in_order=in_order, pin_memory=True, persistent_workers=True
    ) as loader:
        for _ in range(2):
            there = []
            for number, (images, labels) in enumerate(loader):
                assert images.is_pinned()
                assert labels.is_pinned()
                with torch.cuda.stream((torch.cuda.default_stream(), *side)[number % streams]):
                    if number % 8 < streams:
                        torch.cuda._sleep(LONG)
                    images = images.to("cuda", non_blocking=True)  # noqa: PLW2901  (as a training loop does)
                    labels = labels.to("cuda", non_blocking=True)  # noqa: PLW2901
                    there.append((images.flatten(1).amin(1), images.flatten(1).amax(1), labels))
                del images, labels
            torch.cuda.synchronize()
            seen = []
            for least, most, labels in there:
                assert torch.equal(least, labels.float())
                assert torch.equal(most, labels.float())
                seen += labels.tolist()
            assert sorted(seen) == list(range(len(dataset)))


def test_a_view_of_a_pinned_block_counts_as_the_block():
    """Small tensors of a batch share a block: a stream that reads one of them keeps torch from using it again."""
    for _ in range(20):
        block = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
        view = block[1024:2048].view(torch.float32)
        view.fill_(7.0)
        torch.cuda._sleep(LONG // 10)
        there = view.to("cuda", non_blocking=True)
        del block, view
        other = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
        other.fill_(0)
        assert torch.equal(there.cpu(), torch.full((256,), 7.0))
        del other


def test_pinned_batches_are_not_the_slab():
    loader = headrace.DataLoader(Filled(), batch_size=32, num_workers=2, in_order=True, pin_memory=True)
    kept = list(loader)
    assert loader.stats().copied_out == 0
    for number, (images, labels) in enumerate(kept):
        assert labels.tolist() == list(range(32 * number, min(600, 32 * number + 32)))
        assert torch.equal(images[:, 0, 0, 0], labels.float())


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
@pytest.mark.parametrize("shape", [(64,), (3, 64, 64)], ids=["together", "apart"])
def test_device_batches_behind_long_kernels(in_order, shape):
    """Memory of the slab and of the device is used again only when the copy, and the work before it, is done."""
    with headrace.DataLoader(
        Filled(1600, shape), batch_size=16, num_workers=8, in_order=in_order, device="cuda", persistent_workers=True
    ) as loader:
        for _ in range(2):
            there = []
            for number, (images, labels) in enumerate(loader):
                if number % 8 == 0:
                    torch.cuda._sleep(LONG)
                there.append((images.flatten(1).amin(1), images.flatten(1).amax(1), labels.clone()))
                del images, labels
            torch.cuda.synchronize()
            seen = []
            for least, most, labels in there:
                assert torch.equal(least, labels.float())
                assert torch.equal(most, labels.float())
                seen += labels.tolist()
            assert sorted(seen) == list(range(1600))


def test_a_trainer_on_a_stream_of_its_own():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for images, labels in headrace.DataLoader(Filled(), batch_size=32, num_workers=2, device="cuda"):
            torch.cuda._sleep(LONG // 100)
            assert torch.equal((images * 1.0)[:, 0, 0, 0], labels.float())
    torch.cuda.synchronize()


def test_the_trainer_may_change_its_stream_between_batches():
    """Batches copied ahead for one stream and taken by another."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    seen = []
    for number in range(2):
        iterator = iter(headrace.DataLoader(Filled(), batch_size=16, num_workers=4, device="cuda"))
        for turn in range(38):
            with torch.cuda.stream(streams[(turn + number) % 3]):
                images, labels = next(iterator)
                torch.cuda._sleep(LONG // 100)
                seen.append((images.flatten(1).amax(1), labels.clone()))
                del images, labels
        assert next(iterator, None) is None
    torch.cuda.synchronize()
    assert all(torch.equal(most, labels.float()) for most, labels in seen)
    assert sorted(label for _, labels in seen for label in labels.tolist()) == sorted([*range(600)] * 2)


@pytest.mark.parametrize("left", ["at the end", "early", "after an error"])
def test_no_event_and_no_stream_is_in_a_cycle(left):
    """Whatever the garbage collector finds later, it may find in a forked child, which destroying an event ends."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        loader = headrace.DataLoader(
            Fails() if left == "after an error" else Filled(),
            batch_size=32,
            num_workers=2,
            in_order=True,
            device="cuda",
            persistent_workers=True,
        )
        for _ in range(2):
            with suppress(ValueError):
                for number, _ in enumerate(loader):
                    if left == "early" and number == 3:
                        break
        loader.close()
        del loader
        gc.collect()
        found = [type(thing) for thing in gc.garbage if isinstance(thing, (torch.cuda.Event, torch.cuda.Stream))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()
    assert found == []


@pytest.mark.parametrize("attempt", range(10))
@pytest.mark.parametrize("left", ["closed", "closed after an error", "dropped"])
def test_other_loaders_keep_their_forked_workers(attempt, left):
    """Children that torch forks after a device loader was used collect garbage, and live."""
    dataset = Fails() if left == "closed after an error" else Filled()
    loader = headrace.DataLoader(dataset, batch_size=32, num_workers=2, in_order=True, device="cuda")
    with suppress(ValueError):
        for _ in loader:
            pass
    if left != "dropped":
        loader.close()
    del loader
    theirs = torch.utils.data.DataLoader(Collects(), batch_size=8, num_workers=4, multiprocessing_context="fork")
    assert sorted(label for _, labels in theirs for label in labels.tolist()) == list(range(64))


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
