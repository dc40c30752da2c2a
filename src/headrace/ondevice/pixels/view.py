"""The origin of one result's pixels in its picture: crops, paddings, flips and one resize, folded into numbers.

Everything before the resize is a window of the picture, everything after it a window of what was resized; either may
reach beyond what is there, which is padding. Flips change places with both, so they are noted and done last.
"""

import enum
import math
import struct
from dataclasses import dataclass
from typing import Final

HEIGHT, WIDTH, FROM_Y, FROM_X, FROM_H, FROM_W, FROM_TOP, FROM_LEFT, FROM_BOTTOM, FROM_RIGHT, TO_H, TO_W = range(12)
AT_Y, AT_X, AT_TOP, AT_LEFT, AT_BOTTOM, AT_RIGHT, OUT_H, OUT_W, MIRRORED, UPSIDE_DOWN, MID_Y, MID_N = range(12, 24)
OPERATIONS: Final = 24
"""Columns of a row of numbers: the picture's size; the window of it, and which part of the picture counts; the size
it is resized to; where the result lies in that, and which part of that counts; the result's size and flips; the rows
of the window that the result needs; then pairs of colour operation and factor."""
MOST_OPERATIONS: Final = 8
COLUMNS: Final = OPERATIONS + 2 * MOST_OPERATIONS
PACKED: Final = struct.Struct(f"{COLUMNS}f")
"""A row on its way: as bytes it is one thing to send, not forty."""


class Filling(enum.IntEnum):
    """The values that fill a window where it reaches beyond the picture."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of one side of the resize: before it, or after it."""

    filling: Filling = Filling.CONSTANT
    fill: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """In levels from 0 to 255."""


class PictureFrame:
    """A window in a plane: its origin and size, and the box of the plane whose pixels are the picture's."""

    __slots__ = ("bottom", "h", "left", "right", "top", "w", "x", "y")

    def __init__(self, h: int, w: int) -> None:
        self.y = self.x = self.top = self.left = 0
        self.h = self.bottom = h
        self.w = self.right = w

    def crop(self, y: int, x: int, h: int, w: int) -> None:
        self.y, self.x, self.h, self.w = self.y + y, self.x + x, h, w

    def pad(self, left: int, top: int, right: int, bottom: int) -> None:
        self.top, self.left = max(self.top, self.y), max(self.left, self.x)
        self.bottom, self.right = min(self.bottom, self.y + self.h), min(self.right, self.x + self.w)
        self.crop(-top, -left, self.h + top + bottom, self.w + left + right)


class View:
    """The geometry of one picture so far, transform by transform."""

    __slots__ = ("_first", "_frame", "_mirrored", "_resized", "_upside", "operations", "repeats", "size")

    def __init__(self, height: int, width: int) -> None:
        self.size = height, width
        self._first = self._frame = PictureFrame(height, width)
        self._resized: tuple[int, int] | None = None
        self._mirrored = self._upside = False
        self.operations: list[tuple[int, float]] = []
        """Of colour, with their factors."""
        self.repeats: str | None = None
        """How what is padded repeats pixels that must be there; None where that does not matter."""

    @property
    def height(self) -> int:
        return self._frame.h

    @property
    def width(self) -> int:
        return self._frame.w

    def crop(self, y: int, x: int, h: int, w: int) -> None:
        frame = self._frame
        frame.crop(
            frame.h - y - h if self._upside else y,
            frame.w - x - w if self._mirrored else x,
            h,
            w,
        )

    def pad(self, left: int, top: int, right: int, bottom: int) -> None:
        spare = {"reflect": 1, "symmetric": 0}.get(self.repeats or "")
        if spare is not None and (max(top, bottom) > self.height - spare or max(left, right) > self.width - spare):
            raise ValueError(
                f"padding_mode={self.repeats!r}: a picture of {self.height} × {self.width} has too little to repeat "
                f"for a padding of {(left, top, right, bottom)}"
            )
        if self._mirrored:
            left, right = right, left
        if self._upside:
            top, bottom = bottom, top
        self._frame.pad(left, top, right, bottom)

    def resize(self, height: int, width: int) -> None:
        """Resize, once at most: see ``Recipe``."""
        self._resized = height, width
        self._frame = PictureFrame(height, width)

    def mirror(self) -> None:
        self._mirrored = not self._mirrored

    def turn_over(self) -> None:
        self._upside = not self._upside

    def row(self, *, reach: float, repeats: bool) -> list[float]:
        """The numbers. ``reach``: of the filter, in pixels; ``repeats``: padding after the resize repeats pixels."""
        first, at = self._first, self._frame
        if self._resized is None:
            at = PictureFrame(first.h, first.w)
        to_h, to_w = self._resized or (first.h, first.w)
        mid = _rows_needed(first.h, to_h, at, reach, repeats=repeats)
        numbers: list[float] = [
            *(self.size[0], self.size[1]),
            *(first.y, first.x, first.h, first.w),
            *(first.top, first.left, first.bottom, first.right),
            *(to_h, to_w),
            *(at.y, at.x, at.top, at.left, at.bottom, at.right),
            *(at.h, at.w, self._mirrored, self._upside),
            *mid,
        ]
        for operation, factor in self.operations:
            numbers += (operation, factor)
        return numbers + [0.0] * (COLUMNS - len(numbers))


def _rows_needed(h: int, to_h: int, at: PictureFrame, reach: float, *, repeats: bool) -> tuple[int, int]:
    """The rows of a window of ``h`` rows that the part ``at`` of the resized window is made of, and one to spare."""
    first, last = (at.top, at.bottom) if repeats else (max(at.y, at.top), min(at.y + at.h, at.bottom))
    if first >= last:
        return 0, 0
    scale = h / to_h
    support = reach * max(scale, 1.0)
    begin = max(0, math.floor((first + 0.5) * scale - support + 0.5) - 1)
    end = min(h, math.floor((last - 0.5) * scale + support + 0.5) + 1)
    return begin, max(0, end - begin)
