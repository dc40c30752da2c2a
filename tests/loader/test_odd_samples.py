"""Samples that are seldom met: what comes out is what one process alone would have made of them."""

import collections
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import headrace
from tests.loader.support import PATIENCE, outcomes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*not writable:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*ComplexHalf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
]


class Sub(torch.Tensor):
    pass


def endless(_):
    made: list[Any] = []
    made.append(made)
    return made


def quantized(index):
    return torch.quantize_per_tensor(torch.ones(3) * index, 0.1, 0, torch.quint8)


STACKED = {
    "scalar tensor": lambda index: torch.tensor(float(index)),
    "no elements": lambda index: (index, torch.empty(3, 0, 2)),
    "conjugate": lambda index: torch.tensor([index + 1j]).conj(),
    "negative": lambda index: torch.tensor([index + 1j]).conj().imag,
    "bfloat16": lambda index: torch.tensor([index], dtype=torch.bfloat16),
    "float8": lambda index: torch.tensor([1.0 * index]).to(torch.float8_e4m3fn),
    "half complex": lambda index: torch.tensor([index + 1j], dtype=torch.complex32),
    "an offset": lambda index: torch.arange(20)[index : index + 3],
    "expanded": lambda index: torch.tensor([1.0 * index]).expand(4),
    "channels last": lambda index: (torch.arange(24.0) + index).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "a float first": lambda index: index if index % 2 else index + 0.5,
    "keys in another order": lambda index: {"a": 1, "b": index} if index % 2 else {"b": index, "a": 1},
    "subclass": lambda index: (torch.ones(2) * index).as_subclass(Sub),
    "empty containers": lambda index: (index, [], {}, ()),
    "strings": lambda index: ("a" * index, b"b" * index),
    "a wide number": lambda index: (1 << 63) - 1 - index,
    "a defaultdict": lambda index: collections.defaultdict(int, a=index),
    "arrays of odd strides": lambda index: (np.arange(12) + index).reshape(3, 4).T[:, ::2],
    "a broadcast array": lambda index: np.broadcast_to(np.array(1.0 * index), (3,)),
}
KEPT = {
    "quantized": quantized,
    "nested": lambda index: torch.nested.nested_tensor([torch.ones(2) * index, torch.ones(3)]),
    "structured array": lambda index: np.array([(index, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "object array": lambda index: np.array([None, index, "x"], dtype=object),
    "dates": lambda index: np.array([f"2020-01-0{index + 1}"], dtype="datetime64[D]"),
    "other byte order": lambda index: np.arange(3, dtype=">i4") + index,
    "contains itself": endless,
    "nothing": lambda _: None,
}


class Made(Dataset[Any]):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.make(index)


def spelled(value: Any) -> Any:
    """Everything about a batch that can be compared."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return "nested", [spelled(part) for part in value.unbind()]
        plain = value.dequantize() if value.is_quantized else value
        if value.dtype in (torch.float8_e4m3fn, torch.complex32):
            plain = value.to(torch.complex64)
        return type(value).__name__, str(value.dtype), tuple(value.shape), plain.tolist()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(key, spelled(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, "itself" if value and value[0] is value else [spelled(item) for item in value]
    return type(value).__name__, value


def loaded(make, **options):
    loader = headrace.DataLoader(Made(make), num_workers=1, in_order=True, timeout=PATIENCE, **options)
    return [spelled(batch) for batch in loader]


@pytest.mark.parametrize("make", STACKED.values(), ids=STACKED)
def test_stacked_as_by_one_process(make):
    assert loaded(make, batch_size=3) == [
        spelled(default_collate(list(map(make, part)))) for part in (range(3), range(3, 6))
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_array_that_goes_backwards(workers):
    """torch refuses it; it comes all the same, with workers or without."""

    def backwards(index):
        return {"a": (np.arange(3)[::-1] + index)[::-1], "b": (np.arange(4.0)[::-2], index)}

    loader = headrace.DataLoader(Made(backwards), 3, num_workers=workers, in_order=True)
    first = next(iter(loader))
    assert first["a"].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert first["b"][0].tolist() == 3 * [[3.0, 1.0]]
    assert first["b"][1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [*STACKED.values(), *KEPT.values()], ids=[*STACKED, *KEPT])
def test_a_collate_fn_s_batch_arrives_as_it_is(make):
    assert loaded(make, batch_size=3, collate_fn=list) == [
        spelled(list(map(make, part))) for part in (range(3), range(3, 6))
    ]


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_cannot_be_stacked_fails_as_in_one_process(make, in_order):
    """Above all, it is no worker's death."""
    expected = None
    try:
        default_collate(list(map(make, range(2))))
    except Exception as error:  # noqa: BLE001  (whatever torch raises)
        expected = type(error)
    loader = headrace.DataLoader(Made(make), batch_size=2, num_workers=1, in_order=in_order, timeout=PATIENCE)
    batches, errors = outcomes(iter(loader))
    if expected is None:
        assert len(batches) == 3
    else:
        assert [type(error) for error in errors] == [expected] * 3
    assert loader.stats().restarts == 0
