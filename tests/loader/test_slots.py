"""Memory for batches comes back when nobody living can need it, and its lack is no reason to hang."""

import time

import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.engine.memory.slab import Slots


class Numbers(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), index)


kept: list[torch.Tensor] = []


def keeping(samples: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that keeps what it was given last."""
    batch = torch.utils.data.default_collate(samples)
    kept[:] = [batch]
    return batch


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "the same workers"])
def test_a_collate_function_that_keeps_its_last_batch_costs_no_slot_for_good(persistent):
    loader = headrace.DataLoader(
        Numbers(),
        2,
        num_workers=2,
        prefetch_factor=3,  # not what is usual, which may grow
        collate_fn=keeping,
        persistent_workers=persistent,
        timeout=240,
        in_order=True,
    )
    used = []
    with loader:
        for _ in range(6):
            assert [batch[0, 0].item() for batch in loader] == [0, 2, 4, 6, 8, 10]
            slab = loader._latest.slab or loader._kept.slabs._things[0]
            used.append(slab.slots._count)
    assert used[-1] <= 2 * 3 + 2 + 2, "made ahead, the user's, and each worker's last"


def test_the_timeout_comes_also_where_there_is_no_slot(monkeypatch):
    loader = headrace.DataLoader(Numbers(), 2, num_workers=1, timeout=1, in_order=True)
    with loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        monkeypatch.setattr(Slots, "acquire", lambda *_, **__: None)
        for _ in iterator.resources.run.machine.epoch.open.copy():
            next(iterator)
        busy = time.process_time()
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            next(iterator)
        assert time.process_time() - busy < 0.5
