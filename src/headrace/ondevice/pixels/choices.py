"""The values that ``on_device=`` takes, and a dataset's description of its pictures."""

from dataclasses import dataclass
from typing import Any

import torch

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_FORMATS = (torch.contiguous_format, torch.channels_last)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The form in which the device's stages give out batches, and the memory that they may take.

    ``dtype``: of floating-point pictures (float32, float16, bfloat16); None is what the transforms say.
    ``memory_format``: ``torch.channels_last`` for convolutions in half precision. ``max_pixels``: a picture whose
    header promises more is refused before anything is allocated for it. ``memory``: bytes of decoded pixels that may be
    on the device at once, at least those of one picture: a batch that needs more is done in parts.
    """

    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    max_pixels: int = 64 * 2**20
    memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured, by name."""
        if self.dtype is not None and self.dtype not in _DTYPES:
            msg = f"OnDevice(dtype=...) takes torch.float32, torch.float16 or torch.bfloat16, not {self.dtype!r}"
            raise ValueError(msg)
        if self.memory_format not in _FORMATS:
            known = "torch.contiguous_format or torch.channels_last"
            raise ValueError(f"OnDevice(memory_format=...) takes {known}, not {self.memory_format!r}")
        for name in ("max_pixels", "memory"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                msg = f"OnDevice({name}=...) takes a positive number, not {value!r}"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Pixels:
    """The part of a dataset's samples that may be made on the device: what a method ``on_device()`` of it returns.

    ``transform``: the torchvision transform, or list of them, that ``augment`` applies to the picture; None for
    nothing. ``picture``: where the picture's encoded bytes stand in what ``fetch`` returns, and the picture itself in
    what ``decode`` and ``augment`` return: a position in a tuple or list, a key of a dict, or None where they are all
    there is. ``pillow``: ``decode`` gives a PIL image; False: a uint8 tensor of 3 × height × width. ``mask``: where a
    mask stands, of the picture's size: ``decode`` makes an array or tensor of height × width of it, and the geometry is
    applied to it too, nearest neighbour. ``boxes``: where an array of boxes stands, number × (x1, y1, x2, y2, ...):
    they move with the picture, are cut to what is seen, and come as one tensor for each picture. ``label``: a function
    for what stands at position 1 of a pair, applied as ``augment`` does, after everything random of the picture.
    ``applied``: so many transforms at the beginning of the list are applied by ``decode`` already.
    """

    transform: Any = None
    picture: int | str | None = 0
    pillow: bool = True
    mask: int | str | None = None
    boxes: int | str | None = None
    label: Any = None
    applied: int = 0
