"""Batches in pinned memory: which tensors share a block, that no slot is lent, and who copies."""

import collections
import ctypes
import threading
from types import MappingProxyType
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils.data._utils.pin_memory import pin_memory

import headrace
from headrace.devices import device_part, pinning
from headrace.devices.pinning import AT_ONCE, Pinning
from headrace.engine.memory.containers import mapped, tensors
from headrace.engine.memory.pieces import ALIGN, TOGETHER, Span, joined, moved, no_slab
from headrace.engine.memory.reservation import Extent
from headrace.engine.memory.slab import Slab
from tests.loader.data import Pairs
from tests.parity.support import samples


class Point(NamedTuple):
    x: torch.Tensor
    y: int


class Own:
    """Pins itself."""

    def __init__(self, value):
        self.value = value

    def pin_memory(self):
        return Own(self.value + 100)

    def __eq__(self, other):
        return isinstance(other, Own) and other.value == self.value

    __hash__ = None


class Frozen(collections.abc.Sequence):
    def __init__(self, items):
        self.items = tuple(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


STRUCTURES = [
    torch.ones(2),
    [torch.ones(2), "text", b"bytes", 3, None],
    (torch.ones(2), (torch.ones(1), "text")),
    Point(torch.ones(2), 4),
    {"a": torch.ones(2), "b": [torch.zeros(1)]},
    collections.OrderedDict(a=torch.ones(1), b=5),
    collections.defaultdict(list, a=torch.ones(1)),
    collections.UserDict(a=torch.ones(1)),
    collections.UserList([torch.ones(1), 2]),
    collections.deque([torch.ones(1), 2]),
    MappingProxyType({"a": torch.ones(1)}),
    Frozen([torch.ones(1), 2]),
    range(3),
    Own(1),
    {"own": Own(2), "tensor": torch.ones(1)},
]


@pytest.mark.parametrize("value", STRUCTURES, ids=lambda value: type(value).__name__)
def test_containers_are_rebuilt_as_torch_rebuilds_them(value, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor + 1)
    ours = mapped(value, torch.Tensor.pin_memory, pinning=True)
    theirs = pin_memory(value)
    assert type(ours) is type(theirs)
    assert plain(ours) == plain(theirs)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, collections.abc.Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    return value


@st.composite
def laid_out(draw):
    """Spans behind one another, as tensors lie in a slot."""
    sizes = st.one_of(st.integers(1, 4096), st.integers(TOGETHER - 64, TOGETHER + 64), st.just(1 << 20))
    start, found = draw(st.integers(0, 1 << 20)) * ALIGN, []
    for place, size in enumerate(draw(st.lists(sizes, max_size=12))):
        found.append(Span(start, size, place))
        start += -(-size // ALIGN) * ALIGN + draw(st.sampled_from([0, 0, 64, 4096]))
    return draw(st.permutations(found))


class TestPieces:
    @given(laid_out())
    def test_all_are_copied_once_and_only_small_ones_together(self, spans):
        groups = joined(spans)
        assert sorted(span for group in groups for span in group) == sorted(spans)
        for group in groups:
            first = group[0].start
            size = max(span.start + span.size for span in group) - first
            assert len(group) == 1 or size <= TOGETHER
            assert all((span.start - first) % ALIGN == 0 for span in group)

    def test_neighbours_go_together(self):
        labels, images, lengths = Span(0, 512, 1), Span(512, 16384, 0), Span(512 + 16384, 512, 2)
        assert joined([images, labels, lengths]) == [[labels, images, lengths]]

    def test_whoever_keeps_labels_does_not_keep_images(self):
        images, labels = Span(0, 1 << 20, 0), Span(1 << 20, 512, 1)
        assert joined([images, labels]) == [[images], [labels]]

    def test_a_batch_of_the_slab_arrives_as_it_was(self):
        slab = Slab(1 << 30, None, Extent(lanes=2, batches=4, rows=None))
        try:
            offset = slab.memory.slot(0)

            def at(where, value):
                flat = torch.frombuffer(slab.memory.map, dtype=value.dtype, count=value.numel(), offset=offset + where)
                flat.copy_(value.flatten())
                return flat.view(value.shape)

            batch = {
                "x": at(0, torch.arange(24, dtype=torch.float32).view(2, 3, 4)),
                "flags": at(128, torch.tensor([True, False, True])),
                "z": at(192, torch.tensor([1 + 2j, 3j])),
                "empty": torch.empty(0, 3),
                "column": at(256, torch.arange(12).view(3, 4))[:, 1],
                "elsewhere": torch.arange(5),
                "text": ["a", "b"],
            }
            blocks, alone = [], []

            def block(count, dtype):
                blocks.append(torch.zeros(count, dtype=dtype))
                return blocks[-1]

            def copied(tensor):
                alone.append(tensor)
                return tensor.clone()

            there, moves = moved(batch, slab.flat, block, copied)
            for target, source in moves:
                target.copy_(source)
            assert {name: plain(value) for name, value in there.items()} == {
                name: plain(value) for name, value in batch.items()
            }
            assert all(there[name].dtype == batch[name].dtype for name in batch if name != "text")
            assert len(blocks) == 1
            assert len(alone) == 3
            held = blocks[0].untyped_storage().data_ptr()
            assert {there[name].untyped_storage().data_ptr() for name in ("x", "flags", "z")} == {held}
            del batch, there, moves
        finally:
            slab.close()

    def test_ordinary_memory_is_never_read_across(self):
        batch = [torch.arange(4), torch.arange(4)]
        there, moves = moved(batch, no_slab, lambda *_: pytest.fail("not in the slab"), torch.clone)
        assert moves == []
        assert [tensor.tolist() for tensor in there] == [[0, 1, 2, 3]] * 2


class HostMemory:
    """Stands for torch's pinned allocator behind a queued kernel: streams read all blocks, so none is used again."""

    def __init__(self):
        self.blocks = []

    def block(self, count, dtype):
        self.blocks.append(torch.zeros(count, dtype=dtype))
        return self.blocks[-1]

    def alone(self, tensor):
        self.blocks.append(tensor.clone())
        return self.blocks[-1]


def late_reader(tensor):
    """What a copy that was queued has of a tensor: its address."""
    raw = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(raw, dtype=tensor.dtype).view(tensor.shape)


class Wide(torch.utils.data.Dataset):
    """Sample i is full of i; a batch of 8 is copied by the thread."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((AT_ONCE // 16,), float(index)), index


class TestLoader:
    @pytest.fixture
    def host(self, monkeypatch):
        """Loaders with ``pin_memory=True`` use this memory, and find an accelerator."""
        host = HostMemory()
        monkeypatch.setattr(device_part, "pinning", lambda: Pinning(host.block, host.alone))
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        return host

    @pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
    @pytest.mark.parametrize("dataset", [Pairs(200), Wide()], ids=["small", "large"])
    def test_what_is_read_late_is_what_was_delivered(self, host, dataset, in_order):
        """Tensors are let go at once, as in ``x = x.to("cuda", non_blocking=True)``; the copy is made at the end."""
        wide = isinstance(dataset, Wide)
        read = []
        with headrace.DataLoader(
            dataset, 8, num_workers=2, in_order=in_order, pin_memory=True, persistent_workers=True
        ) as loader:
            for _ in range(2):
                for batch in loader:
                    read.append([late_reader(tensor) for tensor in batch])
                    del batch
        assert len(read) == 2 * len(dataset) // 8
        found = []
        for values, indices in read if wide else [(values, indices) for indices, values in read]:
            found += indices.tolist()
            expected = indices.float() if wide else 10.0 * indices
            assert torch.equal(values.flatten(1)[:, 0], expected.to(values.dtype))
        assert sorted(found) == sorted([*range(len(dataset))] * 2)

    def test_small_batches_start_no_thread(self, host):
        before = threading.active_count()
        for _ in headrace.DataLoader(Pairs(40), 4, num_workers=1, pin_memory=True):
            assert threading.active_count() == before

    def test_large_batches_are_copied_by_a_thread_that_ends_with_the_epoch(self, host):
        loader = headrace.DataLoader(Wide(), 8, num_workers=1, pin_memory=True, persistent_workers=True)
        for _ in range(2):
            names = set()
            for _ in loader:
                names |= {thread.name for thread in threading.enumerate()}
            assert "headrace pinning" in names
            assert "headrace pinning" not in {thread.name for thread in threading.enumerate()}
        loader.close()

    def test_slots_come_back_while_the_user_keeps_batches(self, host):
        loader = headrace.DataLoader(Pairs(400), 4, num_workers=1, pin_memory=True, prefetch_factor=2)
        kept = list(loader)
        assert loader.stats().slab_bytes <= 8 * 256
        assert loader.stats().copied_out == 0
        assert sorted(i for indices, _ in kept for i in indices.tolist()) == list(range(400))

    def test_without_workers_nothing_is_made_early(self, host):
        asked = []

        class Noted(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                asked.append(index)
                return index

        iterator = iter(headrace.DataLoader(Noted(), 2, num_workers=0, pin_memory=True))
        next(iterator)
        assert asked == [0, 1]

    def test_the_state_counts_what_is_copied_ahead_as_undelivered(self, host):
        loader = headrace.DataLoader(Pairs(40), 4, num_workers=2, in_order=True, pin_memory=True)
        iterator = iter(loader)
        found = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        del iterator
        resumed = headrace.DataLoader(Pairs(40), 4, num_workers=2, in_order=True)
        resumed.load_state_dict(state)
        assert samples([batch[0] for batch in found]) + samples([batch[0] for batch in resumed]) == list(range(40))

    def test_a_copy_that_fails_is_an_error_of_the_loader(self, host, monkeypatch):
        def fail(*_):
            raise MemoryError("no")

        monkeypatch.setattr(pinning.np, "copyto", fail)
        with headrace.DataLoader(Wide(), 8, num_workers=1, pin_memory=True) as loader:
            iterator = iter(loader)
            with pytest.raises(MemoryError, match="no"):
                next(iterator)


def test_tensors_are_found_in_the_order_in_which_they_are_changed():
    value = {"a": [torch.tensor(0), (torch.tensor(1),)], "own": Own(torch.tensor(9)), "b": torch.tensor(2)}
    assert [tensor.item() for tensor in tensors(value, pinning=True)] == [0, 1, 2]
    seen = []
    mapped(value | {"own": 0}, lambda tensor: seen.append(tensor.item()) or tensor)
    assert seen == [0, 1, 2]
