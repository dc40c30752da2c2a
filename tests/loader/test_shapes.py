"""Any number of sample shapes: batches are right, and neither memory nor the next epoch's start grows with them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import headrace
from headrace.engine.memory.layouts import REMEMBERED, Layouts
from headrace.engine.memory.reservation import Reservation
from headrace.sched.ledger_layout import Dims
from tests.loader.support import PATIENCE
from tests.parity.support import assert_same

SHAPES = 4000
DTYPES = [torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64]


def own_memory() -> int:
    """Bytes of this process that it shares with nobody and that lie in no file."""
    return int(re.search(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


class Shapes(Dataset[Any]):
    """Every sample has a shape of its own: keys, structure, dtype and size differ."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        values = torch.arange(index % 7).to(DTYPES[index % len(DTYPES)])
        more = [np.ones(index % 5)] * (index % 3)
        return {"index": index, "memory": own_memory(), f"of {index}": values, "more": more}


@pytest.mark.sampled
@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "persistent workers"])
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
def test_the_memory_of_a_worker_stays_flat(in_order, persistent):
    options = {"in_order": in_order, "persistent_workers": persistent, "timeout": PATIENCE}
    epochs = []
    with headrace.DataLoader(Shapes(SHAPES), batch_size=1, num_workers=1, **options) as loader:
        for _ in range(2):
            inherited = 0 if persistent else own_memory()  # a worker is forked with all that this process has
            epochs.append({int(batch["index"]): int(batch["memory"]) - inherited for batch in loader})
    first, second = epochs
    assert set(first) == set(second) == set(range(SHAPES))
    settled = first[SHAPES // 2]
    assert first[SHAPES - 1] - settled < 10 << 20
    assert second[10] - settled < 10 << 20, "what was met in one epoch must not be learned again in the next"


@pytest.mark.parametrize(("in_order", "batch_size"), [(True, 3), (True, 1), (False, 1)])
def test_every_batch_is_what_torch_makes_of_it(in_order, batch_size):
    """More shapes than are remembered, some of them again and again."""
    dataset = Recurring(4 * REMEMBERED)
    loader = headrace.DataLoader(
        dataset, batch_size=batch_size, num_workers=2, in_order=in_order, collate_fn=None, timeout=PATIENCE
    )
    for _ in range(2):
        seen = []
        for batch in loader:
            indices = batch[0].tolist()
            assert_same(batch, default_collate([dataset[index] for index in indices]))
            seen += indices
        assert sorted(seen) == list(range(len(dataset)))


class Recurring(Dataset[Any]):
    """Samples that come in threes of one shape, every other three being of the same one."""

    def __init__(self, n: int) -> None:
        self.n = n // 3 * 3

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        group = index // 3
        return index, torch.full((4,), index) if group % 2 else {f"key {group}": torch.full((4,), index)}


def reserved():
    return Reservation(Dims(lanes=2, groups=2, slots=4, rows=8), slot_bytes=1 << 20)


def told(memory, slot, sample):
    layouts = Layouts(memory)
    number, layout = layouts.of(sample)
    layouts.tell(slot, number, layouts.description(layout))
    return number


def anew(text):
    """An equal string that is another object."""
    return text[:1] + text[1:]


class TestRecords:
    def test_another_process_reads_what_one_told(self):
        memory = reserved()
        sample = {"x": torch.ones(3), "y": (1, np.ones(2))}
        number = told(memory, 2, sample)
        reader = Layouts(memory)
        assert reader.is_told(2, number)
        assert reader.at(2, number).columns([sample]) is not None
        assert reader.of(sample)[0] == number

    def test_equal_shapes_have_one_number_whatever_objects_they_share(self):
        memory = reserved()
        key = "long key"
        one = {key: (torch.ones(2), torch.ones(2)), "b": {key: 1}}
        other = {anew(key): (torch.ones(2), torch.ones(2)), "b": {anew(key): 1}}
        assert Layouts(memory).of(one)[0] == Layouts(memory).of(other)[0]

    def test_a_slot_used_again_is_told_again(self):
        memory = reserved()
        first = told(memory, 1, torch.ones(3))
        second = told(memory, 1, torch.ones(4))
        reader = Layouts(memory)
        assert not reader.is_told(1, first)
        assert reader.is_told(1, second)
        assert reader.at(1, second).columns([torch.ones(4)]) is not None

    def test_what_is_half_written_is_of_none(self):
        memory = reserved()
        number = told(memory, 0, torch.ones(3))
        view = memory.bytes
        interrupted = Layouts(memory)
        other, layout = interrupted.of(torch.ones(5))

        class Killed(Exception):
            pass

        class Dying:
            """The mapping of a process that is killed at its third store."""

            stores = 0

            def __setitem__(self, at, value):
                Dying.stores += 1
                if Dying.stores == 3:
                    raise Killed
                view[at] = value

        memory.bytes = Dying()
        with pytest.raises(Killed):
            interrupted.tell(0, other, interrupted.description(layout))
        memory.bytes = view
        assert not Layouts(memory).is_told(0, number)
        assert not Layouts(memory).is_told(0, other)

    def test_a_description_that_has_no_room_is_not_told(self):
        memory = reserved()
        assert Layouts(memory).of({f"a key of some length {i}": i for i in range(20_000)}) is None

    def test_only_the_last_ones_are_remembered(self):
        memory = reserved()
        layouts = Layouts(memory)
        for size in range(3 * REMEMBERED):
            layouts.of(torch.empty(size))
        assert len(layouts._known) == len(layouts._described) == REMEMBERED
        number, layout = layouts.of(torch.empty(1))
        layouts.tell(3, number, layouts.description(layout))
        assert Layouts(memory).is_told(3, number)
