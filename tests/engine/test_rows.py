"""Batches that cross to a device as they lie in their slots: they arrive as those do that were unpacked before."""

from collections.abc import Mapping
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils.data import default_collate

import headrace
from headrace.devices import device_part
from headrace.engine.memory.layout import Layout, describe
from headrace.engine.memory.pieces import TOGETHER, RowBlock, crossing, moved, nbytes
from headrace.engine.memory.reservation import Extent
from headrace.engine.memory.slab import Slab
from tests.engine.scripted_device import ScriptedAccelerator
from tests.loader.data import Pairs, Raises, listed


class Point(NamedTuple):
    x: torch.Tensor
    y: int


@pytest.fixture(scope="module")
def slab():
    slab = Slab(1 << 30, None, Extent(lanes=2, batches=4, rows=None))
    yield slab
    slab.close()


def blocks_of(batch, made):
    """Which tensors share a block, and where in it each begins."""
    start = {block.untyped_storage().data_ptr(): number for number, block in enumerate(made)}
    found = []
    for tensor in flattened(batch):
        storage = tensor.untyped_storage().data_ptr()
        found.append((start[storage], tensor.data_ptr() - storage, tensor.dtype, tuple(tensor.shape), tensor.stride()))
    return found


def flattened(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    values = batch.values() if isinstance(batch, Mapping) else batch
    return [tensor for value in values for tensor in flattened(value)]


def form(batch):
    """Its containers."""
    if isinstance(batch, torch.Tensor):
        return "tensor"
    if isinstance(batch, Mapping):
        return type(batch), [(key, form(value)) for key, value in batch.items()]
    return type(batch), [form(value) for value in batch]


def arrived(batch, flat):
    """The batch elsewhere, its blocks, and how many copies that took."""
    made = []

    def block(count, dtype):
        made.append(torch.zeros(count, dtype=dtype))
        return made[-1]

    there, moves = moved(batch, flat, block, lambda tensor: pytest.fail(f"{tensor} lies in the slab"))
    for target, source in moves:
        target.copy_(source)
    return there, made, len(moves)


DTYPES = [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.complex128]
leaves = st.one_of(
    st.integers(0, 9),
    st.floats(0, 1),
    st.builds(
        lambda dtype, shape: torch.zeros(shape, dtype=dtype),
        st.sampled_from(DTYPES),
        st.sampled_from([(), (1,), (3,), (2, 5), (1, 4, 1), (TOGETHER // 64,), (3, TOGETHER // 32)]),
    ),
)
shapes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4),
        st.lists(inner, min_size=1, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=4),
    ),
    max_leaves=6,
)


@given(sample=shapes, rows=st.integers(1, 70), number=st.integers(0, 3))
def test_they_arrive_as_if_they_had_been_unpacked(slab, sample, rows, number):
    layout = Layout(describe(sample))
    offsets, end = layout.plan(rows)
    at = slab.memory.slot(number)
    slot = torch.frombuffer(slab.memory.map, dtype=torch.uint8, count=end, offset=at)
    slot.copy_(torch.arange(end) % 61 % 2)  # bytes that are a number of any type, and a truth value
    host = layout.batch(
        [
            slot[offset : offset + leaf.row_bytes * rows].view(leaf.dtype).view(rows, *leaf.shape)
            for leaf, offset in zip(layout.leaves, offsets, strict=True)
        ]
    )
    way = crossing(layout, rows)
    rest = RowBlock(
        way,
        tuple(
            torch.frombuffer(slab.memory.map, dtype=block.dtype, count=block.count, offset=at + block.start)
            for block in way.blocks
        ),
    )
    assert all(block.start + block.count * block.dtype.itemsize <= end for block in way.blocks)
    there, made, copies = arrived(rest, slab.flat)
    expected, unpacked, least = arrived(host, slab.flat)
    assert form(there) == form(expected) == form(default_collate([sample] * 2))
    assert all(map(torch.equal, flattened(there), flattened(host)))
    assert blocks_of(there, made) == blocks_of(expected, unpacked)
    assert copies == least
    assert nbytes(rest) == nbytes(host)


@pytest.mark.parametrize(
    "sample",
    [
        Point(torch.zeros(3), 1),
        (torch.zeros(3), Point(torch.zeros(3), 1)),
        (torch.zeros(0, 3), 1),
        {"a": torch.zeros(0)},
    ],
    ids=["the user's class", "the user's class within", "no bytes", "nothing"],
)
def test_others_are_looked_at_one_by_one(sample):
    assert crossing(Layout(describe(sample)), 4) is None


class Watched(ScriptedAccelerator):
    """Notes which batches came to it as rows, and how many samples those had."""

    def __init__(self):
        super().__init__()
        self.packed = []

    def copy(self, batch, flat):
        self.packed.append(batch.crossing.blocks[0].tensors[0][2][0] if type(batch) is RowBlock else None)
        return super().copy(batch, flat)


@pytest.fixture
def device(monkeypatch):
    device = Watched()
    monkeypatch.setattr(device_part, "accelerator", lambda name, **options: device)
    return device


def delivered(loader, device):
    """Its batches once all have arrived."""
    found = []
    for batch in loader:
        found.append(batch)
        device.advance(1)
    device.finish()
    return found


in_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])


class Alternating(torch.utils.data.Dataset):
    """From batch to batch of four its samples have another shape, type or container; sample i is full of i."""

    KINDS = (
        lambda index: (torch.full((3,), float(index)), index),
        lambda index: (torch.full((5,), float(index)), index),
        lambda index: (index, torch.full((3,), float(index))),
        lambda index: {"x": torch.full((3,), index, dtype=torch.int32), "y": index},
        lambda index: Point(torch.full((3,), float(index)), index),
        lambda index: torch.full((2, 2), float(index)),
        lambda index: (torch.full((0, 2), float(index)), index),
    )

    def __len__(self):
        return 4 * 7 * 8

    def __getitem__(self, index):
        return self.KINDS[index // 4 % len(self.KINDS)](index)


class TestLoader:
    @in_order
    def test_the_last_batch_has_a_way_of_its_own(self, device, in_order):
        loader = headrace.DataLoader(Pairs(150), 8, num_workers=2, in_order=in_order, device="cuda")
        found = delivered(loader, device)
        assert device.packed == [8] * 18 + [6]
        assert sorted(index for indices, _ in found for index in indices.tolist()) == list(range(150))
        for indices, values in found:
            assert torch.equal(values, 10.0 * indices[:, None] + torch.arange(3))

    def test_a_slot_may_hold_another_layout_the_next_time(self, device):
        dataset = Alternating()
        loader = headrace.DataLoader(dataset, 4, num_workers=2, in_order=True, device="cuda", prefetch_factor=1)
        found = delivered(loader, device)
        assert len(device.registered) < 12  # so that slots were used again
        assert [kind is not None for kind in device.packed] == [number % 7 not in {4, 6} for number in range(56)]
        for number, there in enumerate(found):
            expected = default_collate([dataset[index] for index in range(4 * number, 4 * number + 4)])
            assert form(there) == form(expected)
            assert all(map(torch.equal, flattened(there), flattened(expected)))
            assert [each.dtype for each in flattened(there)] == [each.dtype for each in flattened(expected)]

    @in_order
    def test_what_the_user_collates_is_his(self, device, in_order):
        loader = headrace.DataLoader(Pairs(40), 4, num_workers=2, in_order=in_order, device="cuda", collate_fn=listed)
        found = delivered(loader, device)
        assert device.packed == [None] * 10
        assert sorted(index for indices, _ in found for index in indices.tolist()) == list(range(40))

    def test_rows_that_are_missing_are_left_out(self, device):
        dataset = Pairs(16, hook=Raises(lambda: ValueError("bad"), 5))
        policy = headrace.Skip(max_fraction=0.5)
        loader = headrace.DataLoader(dataset, 4, num_workers=1, in_order=True, device="cuda", on_error=policy)
        found = delivered(loader, device)
        assert device.packed == [4, None, 4, 4]
        assert [index for indices, _ in found for index in indices.tolist()] == [*range(5), *range(6, 16)]

    def test_the_host_gets_no_rows(self):
        for indices, values in headrace.DataLoader(Pairs(8), 4, num_workers=1, in_order=True):
            assert torch.equal(values[:, 0], 10.0 * indices)
