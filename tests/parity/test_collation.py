"""Contract section 8: what collation makes of samples, through a loader with workers."""

import collections
import collections.abc
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from tests.parity.datasets import identity
from tests.parity.support import assert_same, raises


class Point(NamedTuple):
    x: Any
    y: Any


class Tagged(dict):
    """A mapping with a property of its own."""

    tag = "none"


class Fixed(collections.abc.Mapping):
    """A mapping that cannot be changed but can be made from a dict."""

    def __init__(self, items: dict) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Stubborn(Fixed):
    """A mapping that cannot be made from a dict: falls back to dict."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__({"a": a, "b": b})


class Row(collections.abc.Sequence):
    """A sequence that is neither list nor tuple."""

    def __init__(self, values: list) -> None:
        self.values = list(values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


class Marked(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


@dataclasses.dataclass
class Record:
    value: int


@dataclasses.dataclass
class Own:
    """A type that default_collate learns through its map."""

    value: int


def tagged(i: int) -> Tagged:
    sample = Tagged(a=i)
    sample.tag = f"tag {i}"
    return sample


TYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.bool,
]
TYPES += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

SAMPLES = {
    **{str(t)[6:]: lambda i, t=t: torch.arange(i, i + 6).reshape(2, 3).to(t) for t in TYPES},
    "0-dim": lambda i: torch.tensor(i * 0.5),
    "empty": lambda i: torch.empty(0, 3),
    "empty 1-dim": lambda i: torch.empty(0, dtype=torch.int32),
    "transposed": lambda i: torch.arange(i, i + 6).reshape(2, 3).t(),
    "strided": lambda i: torch.arange(i, i + 12.0)[::3],
    "expanded": lambda i: torch.tensor([float(i)]).expand(4),
    "nan and zero": lambda i: torch.tensor([float("nan"), -0.0, float("inf"), i]),
    "channels last": lambda i: torch.arange(i, i + 48.0).reshape(4, 4, 3).permute(2, 0, 1),
    "parameter-free subclass": lambda i: torch.arange(i, i + 3.0).as_subclass(Marked),
    "array": lambda i: np.arange(i, i + 6, dtype=np.float32).reshape(2, 3),
    "array fortran": lambda i: np.asfortranarray(np.arange(i, i + 6).reshape(2, 3)),
    "array 0-dim": np.array,
    "array bool": lambda i: np.array([i > 1, True]),
    "array uint16": lambda i: np.arange(i, i + 3, dtype=np.uint16),
    "numpy float32": lambda i: np.float32(i) / 3,
    "numpy float64": lambda i: np.float64(i) / 3,
    "numpy int64": np.int64,
    "numpy uint8": np.uint8,
    "numpy bool": lambda i: np.bool_(i > 1),
    "float": lambda i: i / 3,
    "int": lambda i: i,
    "big int": lambda i: 2**62 + i,
    "bool": lambda i: i > 1,
    "mixed numbers": lambda i: i if i % 2 else i / 3,
    "str": lambda i: "x" * i + "é",
    "bytes": lambda i: bytes(range(i)),
    "dict": lambda i: {"a": i, "b": torch.ones(2) * i, 3: "s"},
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=i / 2),
    "default dict": lambda i: collections.defaultdict(list, a=i),
    "mapping subclass": tagged,
    "immutable mapping": lambda i: Fixed({"a": i}),
    "stubborn mapping": lambda i: Stubborn(i, i + 1),
    "namedtuple": lambda i: Point(i, torch.ones(3) * i),
    "tuple": lambda i: (torch.ones(3) * i, i),
    "list": lambda i: [torch.ones(3) * i, i / 2],
    "sequence": lambda i: Row([i, i / 2]),
    "range": lambda i: range(i, i + 3),
    "nested": lambda i: {"a": [(i, {"b": Point(torch.ones(2, 2) * i, "s")})], "c": (np.int32(i), [b"x"])},
    "empty containers": lambda i: {"a": [], "b": {}, "c": ()},
    "first sample decides on keys": lambda i: {"a": i, **({"b": 1} if i else {})},
}  # fmt: skip


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.sampled
def test_batches_are_bit_identical(loader_class, kind):
    data = [SAMPLES[kind](i) for i in range(5)]
    expected = [default_collate(data[:2]), default_collate(data[2:4]), default_collate(data[4:])]
    actual = list(loader_class(data, batch_size=2, num_workers=2, in_order=True))
    assert_same(actual, expected)


def test_mapping_keeps_properties_of_the_first_sample(loader_class):
    batches = list(loader_class([tagged(i) for i in range(4)], batch_size=2, num_workers=2))
    assert [batch.tag for batch in batches] == ["tag 0", "tag 2"]


def test_shapes_may_differ_between_batches(loader_class):
    data = [torch.full((n,), float(n)) for n in (1, 1, 5, 5, 3, 3, 0, 0)]
    actual = list(loader_class(data, batch_size=2, num_workers=2, in_order=True))
    assert_same(actual, [default_collate(data[i : i + 2]) for i in range(0, 8, 2)])


def test_types_may_differ_between_batches(loader_class):
    data = [1, 2, "a", "b", {"a": 1}, {"a": 2}, torch.ones(2), torch.ones(2)]
    actual = list(loader_class(data, batch_size=2, num_workers=2, in_order=True))
    assert_same(actual, [default_collate(data[i : i + 2]) for i in range(0, 8, 2)])


def test_large_and_small_samples_mix(loader_class):
    data = [torch.arange(n) for n in (2, 2, 300_000, 300_000, 2, 2)]
    actual = list(loader_class(data, batch_size=2, num_workers=2, in_order=True))
    assert_same(actual, [default_collate(data[i : i + 2]) for i in range(0, 6, 2)])


NOT_SUPPORTED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([None, None], TypeError, f"{NOT_SUPPORTED} <class 'NoneType'>"),
        ([Record(1), Record(2)], TypeError, f"{NOT_SUPPORTED} <class '.*Record'>"),
        ([{1}, {2}], TypeError, f"{NOT_SUPPORTED} <class 'set'>"),
        ([1j, 2j], TypeError, f"{NOT_SUPPORTED} <class 'complex'>"),
        ([object, object], TypeError, NOT_SUPPORTED),
        ([np.array(["a"]), np.array(["b"])], TypeError, f"{NOT_SUPPORTED} <U1"),
        ([np.array([None]), np.array([None])], TypeError, f"{NOT_SUPPORTED} object"),
        ([{"a": 1}, {"b": 1}], KeyError, "a"),
        ([[1, 2], [1]], RuntimeError, "each element in list of batch should be of equal size"),
        ([torch.ones(2), torch.ones(3)], RuntimeError, "stack expects each tensor to be equal size"),
        ([1, "a"], TypeError, "invalid data type 'str'"),
        (
            [torch.eye(2).to_sparse()] * 2,
            RuntimeError,
            "Batches of sparse tensors are not currently supported",
        ),
    ],
    ids=lambda value: type(value[0]).__name__ if isinstance(value, list) else "",
)
def test_refused_batches(loader_class, data, error, message):
    with raises(error, match=message) as direct:
        list(loader_class(data, batch_size=2, num_workers=0))
    with raises(type(direct.value), match=message):
        list(loader_class(data, batch_size=2, num_workers=2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_tensors_are_refused(loader_class, num_workers):
    data = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) for _ in range(2)]
    with raises(RuntimeError, match="Batches of nested tensors are not currently supported"):
        list(loader_class(data, batch_size=2, num_workers=num_workers))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_sparse_tensors_pass_through_a_custom_collate(loader_class):
    data = [(torch.eye(2) * i).to_sparse() for i in range(1, 4)]
    batches = list(loader_class(data, batch_size=None, num_workers=1, collate_fn=identity))
    for sent, received in zip(data, batches, strict=True):
        assert received.is_sparse
        assert torch.equal(received.to_dense(), sent.to_dense())


def test_leaf_that_requires_grad(loader_class):
    data = [torch.ones(2, requires_grad=True) for _ in range(2)]
    assert next(iter(loader_class(data, batch_size=2, num_workers=0))).requires_grad
    with raises(RuntimeError, match="don't support automatic differentiation"):
        list(loader_class(data, batch_size=2, num_workers=2))
    sent = list(loader_class(data, batch_size=None, num_workers=1))
    assert all(t.requires_grad and torch.equal(t, torch.ones(2)) for t in sent)


def test_collate_can_be_extended(loader_class, monkeypatch):
    def collate_own(batch: list[Own], *, collate_fn_map: Any = None) -> torch.Tensor:
        return collate([own.value for own in batch], collate_fn_map=collate_fn_map)

    monkeypatch.setitem(default_collate_fn_map, Own, collate_own)
    batches = list(loader_class([Own(1), Own(2), Own(3)], batch_size=2, num_workers=2))
    assert_same(batches, [torch.tensor([1, 2]), torch.tensor([3])])


def tensor_doubler(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch) * 2


def test_collate_of_tensors_can_be_replaced(loader_class, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, tensor_doubler)
    (batch,) = loader_class([torch.ones(2)] * 2, batch_size=2, num_workers=1)
    assert_same(batch, torch.full((2, 2), 2.0))


CONVERTED = [
    np.arange(3), np.float32(2), 5, 2.5, "text", b"bytes", None, np.array(["a"]), torch.ones(2),
    {"a": np.ones(2), "b": (1, np.zeros(1))}, Point(np.ones(1), 2), (np.ones(1), "s"), [np.ones(1)],
]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 2])
def test_convert(loader_class, num_workers):
    actual = list(loader_class(CONVERTED, batch_size=None, num_workers=num_workers, in_order=True))
    assert_same(actual, [default_convert(sample) for sample in CONVERTED])


def test_any_object_passes_unbatched(loader_class):
    data = [Record(1), {2, 3}, 4j, types.SimpleNamespace(a=1)]
    assert list(loader_class(data, batch_size=None, num_workers=2, in_order=True)) == data
