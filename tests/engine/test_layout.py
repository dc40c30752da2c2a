"""Layouts: rows written leaf by leaf are, bit for bit, what torch's ``default_collate`` makes of the samples."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

import headrace
from headrace.engine.memory.layout import ALIGN, Layout, Leaf, Unstackable, describe
from tests.parity.support import assert_same
from tests.selection import examples

TENSORS = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]
ARRAYS = [np.bool_, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.complex64]
SCALARS = [int, float, bool, np.float32, np.int64, np.uint8, np.bool_, np.float64]


class Point(NamedTuple):
    x: Any
    y: Any


def tensor_like(dtype, shape):
    def make(seed):
        values = torch.arange(seed, seed + int(np.prod(shape, dtype=np.int64))).remainder(97).view(shape)
        made = values % 2 == 0 if dtype is torch.bool else values.to(dtype)
        return made.mT.contiguous().mT if made.dim() >= 2 and seed % 2 else made  # strides may differ

    return make


def array_like(dtype, shape):
    return lambda seed: (np.arange(seed, seed + int(np.prod(shape, dtype=np.int64))) % 97).reshape(shape).astype(dtype)


def scalar_like(kind):
    return lambda seed: kind(seed % 97)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = (
    st.builds(tensor_like, st.sampled_from(TENSORS), shapes)
    | st.builds(array_like, st.sampled_from(ARRAYS), shapes)
    | st.builds(scalar_like, st.sampled_from(SCALARS))
)
makers = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda made: lambda seed: [each(seed + 3) for each in made])
        | st.lists(inner, min_size=1, max_size=3).map(lambda made: lambda seed: tuple(each(seed + 5) for each in made))
        | st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3).map(
            lambda made: lambda seed: {key: each(seed + 7) for key, each in made.items()}
        )
        | st.tuples(inner, inner).map(lambda made: lambda seed: Point(made[0](seed), made[1](seed)))
    ),
    max_leaves=5,
)
"""Functions from a seed to a sample; all samples of one maker have one layout."""


def collate(layout, samples):
    """What a batch made by this layout is: leaf arrays, written row by row, put together."""
    columns = layout.columns(samples)
    assert columns is not None
    rows = len(samples)
    offsets, size = layout.plan(rows)
    slot = torch.zeros(size, dtype=torch.uint8)
    made = []
    for leaf, offset, values in zip(layout.leaves, offsets, columns, strict=True):
        assert offset % ALIGN == 0
        flat = slot[offset : offset + leaf.row_bytes * rows]
        if leaf.row_bytes:
            array = flat.view(leaf.dtype).view(rows, *leaf.shape)
        else:
            array = torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
        for row, value in enumerate(values):
            if leaf.kind is torch.Tensor:
                array[row].copy_(value)
            else:
                array.numpy()[row] = value
        made.append(array)
    return layout.batch(made)


@given(maker=makers, rows=st.integers(1, 5))
@settings(max_examples=examples(200))
def test_batches_are_what_torch_collates(maker, rows):
    samples = [maker(11 * row) for row in range(rows)]
    layout = Layout(describe(samples[0]))
    assert_same(collate(layout, samples), default_collate(samples))


@given(maker=makers)
@settings(max_examples=examples(100))
def test_a_sample_comes_back_from_its_leaves(maker):
    sample = maker(4)
    layout = Layout(describe(sample))
    columns = layout.columns([sample])
    back = layout.sample([column[0] for column in columns])
    assert repr(back) == repr(sample)
    assert type(back) is type(sample)


@given(maker=makers, other=makers)
@settings(max_examples=examples(100))
def test_samples_of_another_layout_are_recognised(maker, other):
    first, second = maker(1), other(2)
    layout = Layout(describe(first))
    same = describe(second) == layout.shape
    assert (layout.columns([first, second]) is not None) == same


@given(maker=makers, rows=st.integers(1, 40))
@settings(max_examples=examples(50))
def test_leaves_do_not_overlap(maker, rows):
    layout = Layout(describe(maker(0)))
    offsets, end = layout.plan(rows)
    spans = [(at, at + leaf.row_bytes * rows) for at, leaf in zip(offsets, layout.leaves, strict=True)]
    for (_, left), (right, _) in zip(spans, [*spans[1:], (end, end)], strict=True):
        assert left <= right


@pytest.mark.parametrize(
    "sample",
    [
        "text",
        b"bytes",
        None,
        object(),
        {1, 2},
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
        torch.nn.Parameter(torch.ones(1)),
        np.array(["a"]),
        np.array([object()]),
        np.zeros(2, ">f4"),
        np.ma.array([1, 2]),
        1 << 70,
        (1, "mixed"),
        {"a": [None]},
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_what_torch_does_not_stack_has_no_layout(sample):
    with pytest.raises(Unstackable):
        describe(sample)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 1.0),
        (1, True),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), np.ones(2, np.float32)),
        (np.ones(2), np.ones(2, np.float32)),
        ((1, 2), (1, 2, 3)),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Point(1, 2), (1, 2)),
        ([1], [[1]]),
    ],
)
def test_the_nearly_equal_are_not_equal(first, second):
    assert Layout(describe(first)).columns([first, second]) is None
    assert Layout(describe(second)).columns([second, first]) is None


@pytest.mark.parametrize("second", [torch.ones(2, requires_grad=True), torch.ones(2).to_sparse(), None, "text"])
def test_what_has_no_layout_has_no_other_s_either(second):
    assert Layout(describe(torch.ones(2))).columns([torch.ones(2), second]) is None


def test_a_leaf_says_what_it_is():
    assert describe(torch.ones(2, 3)) == Leaf(torch.Tensor, torch.float32, (2, 3), None)
    assert describe(3).dtype is torch.int64
    assert describe(3.0).dtype is torch.float64


class Made:
    """A dataset of one maker's samples."""

    def __init__(self, maker):
        self.maker = maker

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return self.maker(11 * index)


@given(maker=makers, num_workers=st.integers(1, 2))
@settings(max_examples=examples(15))
def test_a_loader_gives_what_torch_s_does(maker, num_workers):
    dataset = Made(maker)
    expected = list(torch.utils.data.DataLoader(dataset, 3))
    found = list(headrace.DataLoader(dataset, 3, num_workers=num_workers, in_order=True))
    for left, right in zip(found, expected, strict=True):
        assert_same(left, right)
