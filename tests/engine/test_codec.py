"""Objects through a slot and back: same structure, same types, same bits, no copy of what lies there already."""

import mmap
import pickle
import threading
import warnings
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import headrace
from headrace.engine.memory.pickled import EncodedObject, decode
from tests.parity.datasets import Squares
from tests.parity.support import assert_same, raises
from tests.selection import examples

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def round_trip(value, locate=None):
    encoded = EncodedObject(value, locate)
    memory = mmap.mmap(-1, max(encoded.size, 1))
    view = memoryview(memory)
    encoded.write(view[: encoded.size])
    return decode(view, view)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Record:
    name: str
    data: Any


class Sub(torch.Tensor):
    pass


@st.composite
def tensors(draw):
    """Of any dtype and shape, with the strides that slicing, transposing and expanding give."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=np.int64))
    raw = torch.from_numpy(np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8).copy())
    tensor = raw.view(shape)
    tensor = tensor % 2 == 0 if dtype is torch.bool else tensor.to(dtype)
    for step in draw(st.lists(st.sampled_from(["permute", "slice", "expand", "last"]), max_size=2)):
        if step == "permute":
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
        elif step == "slice" and tensor.dim():
            tensor = tensor[:: draw(st.integers(1, 3))]
        elif step == "expand":
            tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
        elif step == "last" and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


arrays = hnp.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, ">f8", np.bool_, np.complex64, "U3", "datetime64[s]"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
)
values = st.recursive(
    tensors() | arrays | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=6,
)


def bits(tensor):
    dense = tensor.clone(memory_format=torch.contiguous_format)
    return dense.view(-1).view(torch.uint8).tolist() if dense.numel() else []


def check(actual, expected):
    if isinstance(expected, np.ndarray):
        assert type(actual) is np.ndarray
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.tobytes() == expected.tobytes()
        assert actual.flags.writeable
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            check(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            check(left, right)
    elif isinstance(expected, torch.Tensor):
        assert type(actual) is torch.Tensor
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert bits(actual) == bits(expected)
    else:
        assert_same(actual, expected)


@given(value=values)
@settings(max_examples=examples(150))
def test_anything_nested(value):
    check(round_trip(value), value)


@given(tensor=tensors())
@settings(max_examples=examples(100))
def test_memory_formats_are_kept(tensor):
    found = round_trip(tensor)
    check(found, tensor)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        if tensor.is_contiguous(memory_format=memory_format):
            assert found.is_contiguous(memory_format=memory_format)


@given(tensor=tensors(), at=st.integers(0, 3))
@settings(max_examples=examples(100))
def test_what_lies_in_the_slot_is_not_copied(tensor, at):
    """Some slices of a tensor in the slot: they come back as views of the same bytes."""
    dense = tensor.contiguous()
    size = dense.numel() * dense.element_size()
    slot = torch.zeros(64 * at + max(size, 1), dtype=torch.uint8)
    start = 64 * at
    inside = slot[start : start + size].view(dense.dtype).view(dense.shape) if size else dense
    inside.copy_(dense)
    value = [inside, inside.mT if inside.dim() >= 2 else inside, inside[1:] if inside.dim() else inside]

    def locate(found):
        offset = found.data_ptr() - slot.data_ptr()
        return offset if 0 <= offset < slot.numel() else None

    encoded = EncodedObject(value, locate)
    memory = memoryview(bytearray(encoded.size))
    encoded.write(memory)
    found = decode(memory, memoryview(slot.numpy()))
    for actual, expected in zip(found, value, strict=True):
        check(actual, expected)
        if expected.numel():
            assert actual.data_ptr() == expected.data_ptr()
            assert actual.stride() == expected.stride()


def test_lazily_conjugated_and_negated_views_are_what_they_say():
    slot = torch.tensor([1 + 2j, 3 - 4j])
    for value in (slot.conj(), slot.conj().imag, slot.real, slot.imag):
        found = round_trip([value], lambda tensor: tensor.data_ptr() - slot.data_ptr())
        if value.is_conj() or value.is_neg():
            assert torch.equal(found[0], value.clone())
    for value in (slot.conj(), slot.conj().imag):
        assert torch.equal(round_trip(value), value)


def conjugated(batch):
    return torch.utils.data.default_collate([torch.tensor(complex(value, 1)) for value in batch]).conj()


def test_a_conjugated_batch_through_a_worker():
    (batch,) = headrace.DataLoader(Squares(3), 3, num_workers=1, collate_fn=conjugated)
    assert batch.tolist() == [0 - 1j, 1 - 1j, 4 - 1j]


def test_one_element_of_a_slice():
    for value in (torch.arange(4, dtype=torch.int16)[::2][:1], torch.ones(2, 3, 4)[:1, :, ::4].squeeze(1)[:, :1]):
        check(round_trip(value), value)


class TestTensors:
    def test_leaf_with_gradient(self):
        found = round_trip(torch.ones(2, 3).t().requires_grad_())
        assert found.requires_grad
        assert found.is_leaf
        assert found.shape == (3, 2)

    def test_not_a_leaf(self):
        with raises(headrace.BatchNotSendable, match="detach"):
            EncodedObject([torch.ones(2, requires_grad=True) * 2])

    def test_parameter(self):
        found = round_trip(torch.nn.Parameter(torch.ones(3)))
        assert type(found) is torch.nn.Parameter
        assert found.tolist() == [1, 1, 1]
        assert found.requires_grad

    def test_subclass(self):
        value = torch.arange(4.0).as_subclass(Sub)
        value.note = "kept"
        found = round_trip(value)
        assert type(found) is Sub
        assert found.note == "kept"
        assert found.tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("kind", ["coo", "coo uncoalesced", "csr", "csc", "bsr", "bsc"])
    def test_sparse(self, kind):
        dense = torch.tensor([[0.0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 0], [0, 0, 4, 0]])
        value = {
            "coo": dense.to_sparse,
            "coo uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)),
            "csr": dense.to_sparse_csr,
            "csc": dense.to_sparse_csc,
            "bsr": lambda: dense.to_sparse_bsr((2, 2)),
            "bsc": lambda: dense.to_sparse_bsc((2, 2)),
        }[kind]
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            sent = quietly(value)
            found = round_trip(sent)
            assert found.layout is sent.layout
            assert torch.equal(found.to_dense(), sent.to_dense())
            if kind.startswith("coo"):
                assert found.is_coalesced() == sent.is_coalesced()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
    def test_quantized(self):
        value = torch.quantize_per_tensor(torch.tensor([0.0, 0.5, 1.0]), 0.1, 2, torch.quint8)
        found = round_trip(value)
        assert found.dtype is torch.quint8
        assert (found.q_scale(), found.q_zero_point()) == (value.q_scale(), value.q_zero_point())
        assert found.int_repr().tolist() == value.int_repr().tolist()

    def test_storage(self):
        value = torch.arange(5, dtype=torch.uint8).untyped_storage()
        found = round_trip(value)
        assert bytes(found) == bytes(value)
        assert len(round_trip(torch.UntypedStorage(0))) == 0

    def test_nan_bits(self):
        value = torch.tensor([0x7FC00001, -1], dtype=torch.int32).view(torch.float32)
        assert_same(round_trip(value), value)

    def test_writing_to_what_arrived(self):
        found = round_trip([torch.zeros(3), np.zeros(3)])
        found[0] += 1
        found[1] += 1
        assert found[0].tolist() == found[1].tolist() == [1, 1, 1]

    def test_the_same_object_twice_arrives_as_one(self):
        tensor, array = torch.ones(2), np.ones(2)
        found = round_trip([tensor, array, tensor, array])
        assert found[0] is found[2]
        assert found[1] is found[3]


def quietly(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse compressed layouts are announced as beta
        return make()


@pytest.mark.parametrize(
    "value",
    [
        *("text", b"bytes", "", 2**100, None, ..., int, frozenset({1}), range(3), slice(1, 2)),
        *(OrderedDict(b=1, a=2), deque([1, 2]), {1, 2}, Record("r", [1]), complex(1, 2), bytearray(b"xyz")),
        *(np.float32(3), np.datetime64("2020-01-01"), torch.float16, torch.Size([1, 2]), torch.device("cpu")),
    ],
    ids=repr,
)
def test_ordinary_objects(value):
    found = round_trip(value)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("value", [lambda: None, threading.Lock(), (i for i in ())])
def test_what_cannot_be_sent_says_so(value):
    with raises(headrace.BatchNotSendable, match="or use num_workers=0"):
        EncodedObject({"deep": [value]})


def test_arrays_keep_fortran_order():
    value = np.asfortranarray(np.arange(6).reshape(2, 3))
    found = round_trip(value)
    assert found.flags.f_contiguous
    assert found.tolist() == value.tolist()


@given(values=st.lists(values, min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_sizes_are_what_is_written(values):
    """Every byte written lies within ``size``: objects stand next to each other in a slot."""
    encoded = [EncodedObject(value) for value in values]
    assert all(each.size % 64 == 0 for each in encoded)
    memory = memoryview(bytearray(sum(each.size for each in encoded)))
    at, places = 0, []
    for each in encoded:
        places.append(at)
        each.write(memory[at : at + each.size])
        at += each.size
    for place, value in zip(places, values, strict=True):
        check(decode(memory[place:], memory), value)


def test_an_object_that_breaks_while_it_is_pickled():
    class Broken:
        def __reduce__(self):
            raise KeyError("inside")

    with raises(headrace.BatchNotSendable, match="KeyError: 'inside'") as caught:
        EncodedObject(Broken())
    assert isinstance(caught.value.__cause__, KeyError)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
