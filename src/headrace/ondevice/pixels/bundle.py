"""A batch as workers bring it: encoded pictures or pixels one after the other, a row of numbers for each, the rest."""

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from headrace.core.errors import NotOnDevice
from headrace.ondevice.pixels import view as V

ALIGN = 64
HOLE: Final = ...
"""Stands in a sample, and in a batch, where picture, mask and boxes will: one thing, however large the batch is."""


class Storing:
    """The kinds of a picture's bytes, as numbers, which travel more cheaply than members of an enumeration."""

    JPEG = 0
    PLANES = 1
    """Levels, channel by channel."""
    PIXELS = 2
    """Levels, pixel by pixel."""


class Picture(NamedTuple):
    """The sample as a worker brings it: bytes, and what is to be done with them."""

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


Place = tuple[int, int, int, int, int, int]
"""Of a picture: where its bytes begin and how many they are, what they are; of its mask: where, how many, and the bytes
of one value of it."""


class Bundle(NamedTuple):
    """A batch of them."""

    data: torch.Tensor
    """All bytes, in any order, and what lies between them. Pixels and masks begin on multiples of ``ALIGN``."""
    table: torch.Tensor
    """Of each picture its place and its numbers: in one, since every tensor of a batch takes the trainer's time."""
    indices: list[Any]
    boxes: list[torch.Tensor] | None
    rest: Any
    """Collated."""
    mask: np.dtype[Any] | None
    """The type of masks' values, if there are masks."""
    shape: tuple[int, int]
    """Height and width of the results."""

    @property
    def places(self) -> Any:
        """A ``Place`` for each, as an array."""
        return self.table[:, :PLACE].numpy()

    @property
    def rows(self) -> torch.Tensor:
        """Numbers, float32."""
        return self.table[:, PLACE:].view(torch.float32)


PLACE: Final = 6
Allocate = Callable[[torch.Size, torch.dtype], torch.Tensor | None]
IsThere = Callable[[torch.Tensor], bool]


def bundled(samples: Sequence[Picture], allocate: Allocate, is_there: IsThere) -> Bundle:
    """The batch, in memory from ``allocate`` where that gives some. Raises where results differ in size.

    ``is_there``: whether something lies in such memory already. Where all pictures do, they stay where they are.
    """
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
    data, places = _in_place(samples, is_there) or _copied(samples, allocate)
    table = _memory((count, PLACE + V.COLUMNS // 2), torch.int64, allocate)
    words: Any = table.numpy()
    words[:, :PLACE] = places
    words[:, PLACE:].view(np.float32)[:] = numbers
    first = samples[0]
    return Bundle(
        data,
        table,
        [sample.index for sample in samples],
        None if first.boxes is None else [sample.boxes for sample in samples],
        torch_collate.collate([sample.rest for sample in samples], collate_fn_map=_with_holes()),
        None if first.mask is None else first.mask.dtype,
        (int(sizes[0, 0]), int(sizes[0, 1])),
    )


def _in_place(samples: Sequence[Picture], is_there: IsThere) -> tuple[torch.Tensor, list[Place]] | None:
    """The tensor that reaches over all samples, and their places in it; None if they have to be brought together."""
    owner: Any = getattr(samples[0].data, "obj", None)
    if not isinstance(owner, np.ndarray) or not owner.flags.writeable or not is_there(torch.from_numpy(owner)):
        return None
    if any(getattr(each.data, "obj", None) is not owner or each.mask is not None for each in samples):
        return None
    views = [np.frombuffer(sample.data, np.uint8) for sample in samples]
    starts, sizes = [view.__array_interface__["data"][0] for view in views], [view.size for view in views]
    low, high = min(starts), max(map(sum, zip(starts, sizes, strict=True)))
    from_low = low - owner.ctypes.data
    places = [
        (start - low, size, sample.storing, 0, 0, 0) for sample, start, size in zip(samples, starts, sizes, strict=True)
    ]
    return torch.from_numpy(owner[from_low : from_low + high - low]), places


def _copied(samples: Sequence[Picture], allocate: Allocate) -> tuple[torch.Tensor, list[Place]]:
    """All bytes, one after the other."""
    places, end = list[Place](), 0
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
    return memory, places


def _with_holes() -> dict[Any, Any]:
    """The map by which torch collates, with the user's own entries and one for holes."""
    return {**torch_collate.default_collate_fn_map, EllipsisType: lambda _batch, **_: HOLE}


def _memory(shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate) -> torch.Tensor:
    found = allocate(torch.Size(shape), dtype)
    return torch.empty(shape, dtype=dtype) if found is None else found


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


def _size(size: Any) -> str:
    return f"{int(size[0])} × {int(size[1])}"
