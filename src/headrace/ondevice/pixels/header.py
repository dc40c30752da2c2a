"""The header of a JPEG file, read before its first pixel by the worker that brings it, in microseconds."""

from typing import Final, NamedTuple

_START: Final = b"\xff\xd8\xff"
_END: Final = b"\xff\xd9"
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE: Final = 0xC0
_SCAN: Final = 0xDA
_ADOBE: Final = 0xEE
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_SAMPLINGS: Final = frozenset({(0x11, 0x11), (0x21, 0x11), (0x22, 0x11)})
"""Luma and chroma: 4:4:4, 4:2:2 and 4:2:0."""


Bytes = bytes | bytearray | memoryview


class Header(NamedTuple):
    """The size of a picture, and whether it is of the common kind that every decoder reads alike.

    That is: baseline, eight bits, grey or YCbCr in one of three samplings, and with an end where the file has its end.
    """

    height: int
    width: int
    common: bool


def header(data: Bytes) -> Header | None:
    """The header of a JPEG file; None if the bytes are not one, or do not say their size."""
    size = len(data)
    if bytes(data[:3]) != _START:
        return None
    at, adobe = 2, -1
    while at + 4 <= size:
        if data[at] != 0xFF:
            return None
        kind = data[at + 1]
        if kind == 0xFF:  # fill bytes
            at += 1
            continue
        if kind in _ALONE:
            at += 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if kind == _SCAN or length < 2 or at + 2 + length > size:
            return None
        if kind == _ADOBE and length >= 14 and bytes(data[at + 4 : at + 9]) == b"Adobe":
            adobe = data[at + 15]
        if kind in _FRAMES:
            return _frame(data, at, length, kind, adobe)
        at += 2 + length
    return None


def _frame(data: Bytes, at: int, length: int, kind: int, adobe: int) -> Header | None:
    if length < 8:
        return None
    height, width, count = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8], data[at + 9]
    if not height or not width or length < 8 + 3 * count:
        return None
    samplings = [data[at + 11 + 3 * i] for i in range(count)]
    names = [data[at + 10 + 3 * i] for i in range(count)]
    known = count == 1
    if count == 3:
        known = samplings[1] == samplings[2] and (samplings[0], samplings[1]) in _SAMPLINGS
        known = known and adobe != 0 and bytes(names) != b"RGB"
    common = kind == _BASELINE and data[at + 4] == 8 and known and bytes(data[-2:]) == _END
    return Header(height, width, common)
