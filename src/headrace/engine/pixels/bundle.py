"""A batch as workers bring it: encoded pictures or pixels one after the other, a row of numbers for each, the rest."""

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from headrace.core.errors import NotOnDevice
from headrace.engine.pixels import view as V

ALIGN = 64
HOLE: Final = ...
"""Stands in a sample, and in a batch, where picture, mask and boxes will: one thing, however large the batch is."""


class Storing:
    """What the bytes of a picture are: numbers, which travel more cheaply than members of an enumeration."""

    JPEG = 0
    PLANES = 1
    """Levels, channel by channel."""
    PIXELS = 2
    """Levels, pixel by pixel."""


class Picture(NamedTuple):
    """One sample as a worker brings it: bytes, and what is to be done with them."""

    index: Any
    data: Any
    """A buffer of uint8: JPEG, or levels of the size that ``numbers`` begin with."""
    storing: int
    numbers: bytes
    """See ``view.PACKED``."""
    mask: Any
    """An array of height × width, or None."""
    boxes: Any
    """A tensor, or None."""
    rest: Any
    """The sample, with a ``HOLE`` where picture, mask and boxes stand."""


def named(index: Any, sample: Any) -> Any:
    """A sample; a picture knows the index that the user's sampler gave it."""
    return sample._replace(index=index) if type(sample) is Picture else sample


class Bundle(NamedTuple):
    """A batch of them."""

    data: torch.Tensor
    """All bytes. Files stand one directly after the other, pixels and masks on multiples of ``ALIGN``."""
    places: torch.Tensor
    """Of each picture: where its bytes begin and how many they are, what they are; and of its mask: where and how
    many, and the bytes of one value of it."""
    rows: torch.Tensor
    """Numbers, float32."""
    indices: list[Any]
    boxes: list[torch.Tensor] | None
    rest: Any
    """Collated."""
    mask: np.dtype[Any] | None
    """The type of masks' values, if there are masks."""
    shape: tuple[int, int]
    """Height and width of the results."""


Allocate = Callable[[torch.Size, torch.dtype], torch.Tensor | None]


def bundled(samples: Sequence[Picture], allocate: Allocate) -> Bundle:
    """The batch, in memory from ``allocate`` where that gives some. Raises where results differ in size."""
    count = len(samples)
    numbers = np.frombuffer(b"".join([sample.numbers for sample in samples]), np.float32).reshape(count, V.COLUMNS)
    sizes = numbers[:, V.OUT_H : V.OUT_W + 1]
    other = (sizes != sizes[0]).any(1)
    if other.any():
        odd = int(other.argmax())
        raise NotOnDevice(
            f"sample {samples[odd].index!r} is {_size(sizes[odd])} after its transforms and sample "
            f"{samples[0].index!r} is {_size(sizes[0])}: a batch needs one size. Add a crop, or a resize to height and "
            "width"
        )
    places, end = [], 0
    for sample in samples:
        size = memoryview(sample.data).nbytes
        at = end if sample.storing == Storing.JPEG else _aligned(end)
        behind, mask, item = at + size, 0, 0
        if sample.mask is not None:
            behind, mask, item = _aligned(behind), sample.mask.nbytes, sample.mask.dtype.itemsize
        places.append((at, size, sample.storing, behind, mask, item))
        end = behind + mask
    memory = _memory((max(end, 1),), torch.uint8, allocate)
    levels: Any = memory.numpy()
    target = memoryview(levels)
    for sample, (at, size, _, behind, mask, _) in zip(samples, places, strict=True):
        target[at : at + size] = memoryview(sample.data)
        if mask:
            levels[behind : behind + mask] = np.ascontiguousarray(sample.mask).reshape(-1).view(np.uint8)
    first = samples[0]
    table = _memory((count, V.COLUMNS), torch.float32, allocate)
    table.numpy()[:] = numbers
    where = _memory((count, 6), torch.int64, allocate)
    where.numpy()[:] = places
    return Bundle(
        memory,
        where,
        table,
        [sample.index for sample in samples],
        None if first.boxes is None else [sample.boxes for sample in samples],
        torch_collate.collate([sample.rest for sample in samples], collate_fn_map=_with_holes()),
        None if first.mask is None else first.mask.dtype,
        (int(sizes[0, 0]), int(sizes[0, 1])),
    )


def _with_holes() -> dict[Any, Any]:
    """How torch collates, with whatever the user has registered there."""
    return {**torch_collate.default_collate_fn_map, EllipsisType: lambda _batch, **_: HOLE}


def _memory(shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate) -> torch.Tensor:
    found = allocate(torch.Size(shape), dtype)
    return torch.empty(shape, dtype=dtype) if found is None else found


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


def _size(size: Any) -> str:
    return f"{int(size[0])} × {int(size[1])}"
