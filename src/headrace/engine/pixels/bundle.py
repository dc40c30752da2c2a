"""A batch as workers bring it: encoded pictures or pixels one after the other, a row of numbers for each, the rest."""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from headrace.core.errors import NotOnDevice
from headrace.engine.pixels import view as V

ALIGN = 64


class Storing(enum.IntEnum):
    """What the bytes of a picture are."""

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
    storing: Storing
    numbers: list[float]
    mask: Any
    """An array of height × width, or None."""
    boxes: Any
    """A tensor, or None."""
    rest: Any
    """The sample, with 0 where picture, mask and boxes stand."""


def named(index: Any, sample: Any) -> Any:
    """A sample; a picture knows the index that the user's sampler gave it."""
    return sample._replace(index=index) if type(sample) is Picture else sample


class Bundle(NamedTuple):
    """A batch of them."""

    data: torch.Tensor
    """All bytes."""
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

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the results."""
        return int(self.rows[0, V.OUT_H]), int(self.rows[0, V.OUT_W])


Allocate = Callable[[torch.Size, torch.dtype], torch.Tensor | None]


def bundled(samples: Sequence[Picture], allocate: Allocate) -> Bundle:
    """The batch, in memory from ``allocate`` where that gives some. Raises where results differ in size."""
    first = samples[0]
    wanted = first.numbers[V.OUT_H : V.OUT_W + 1]
    for sample in samples:
        if sample.numbers[V.OUT_H : V.OUT_W + 1] != wanted:
            raise NotOnDevice(
                f"sample {sample.index!r} is {_size(sample)} after its transforms and sample {first.index!r} is "
                f"{_size(first)}: a batch needs one size. Add a crop, or a resize to height and width"
            )
    places, end = [], 0
    for sample in samples:
        data = memoryview(sample.data).nbytes
        mask = 0 if sample.mask is None else sample.mask.nbytes
        behind = _aligned(end + data)
        item = 0 if sample.mask is None else sample.mask.dtype.itemsize
        places.append((end, data, int(sample.storing), behind, mask, item))
        end = _aligned(behind + mask)
    memory = _memory((max(end, 1),), torch.uint8, allocate)
    target = memory.numpy()
    for sample, (at, size, _, behind, mask, _) in zip(samples, places, strict=True):
        target[at : at + size] = np.frombuffer(sample.data, np.uint8)
        if mask:
            target[behind : behind + mask] = np.ascontiguousarray(sample.mask).reshape(-1).view(np.uint8)
    table = _memory((len(samples), V.COLUMNS), torch.float32, allocate)
    table.numpy()[:] = [sample.numbers for sample in samples]
    where = _memory((len(samples), 6), torch.int64, allocate)
    where.numpy()[:] = places
    return Bundle(
        memory,
        where,
        table,
        [sample.index for sample in samples],
        None if first.boxes is None else [sample.boxes for sample in samples],
        default_collate([sample.rest for sample in samples]),
        None if first.mask is None else first.mask.dtype,
    )


def _memory(shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate) -> torch.Tensor:
    found = allocate(torch.Size(shape), dtype)
    return torch.empty(shape, dtype=dtype) if found is None else found


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


def _size(sample: Picture) -> str:
    return f"{int(sample.numbers[V.OUT_H])} × {int(sample.numbers[V.OUT_W])}"
