"""Bounds of functions by ``.eh_frame``, the table that C++ exceptions need and stripping leaves alone."""

import struct

import numpy as np
import numpy.typing as npt

_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
_RELATIVE = 0x10


def ranges(body: bytes, address: int) -> npt.NDArray[np.uint64]:
    """(start, end) of every function described, by start, up to what is damaged. ``address``: where the section is
    loaded.
    """
    found: list[tuple[int, int]] = []
    encodings: dict[int, int] = {}
    at = 0
    while at + 8 <= len(body):
        (length,) = struct.unpack_from("<I", body, at)
        if length in {0, 0xFFFFFFFF}:  # the end, or a section larger than 4 GiB
            break
        (pointer,) = struct.unpack_from("<I", body, at + 4)
        try:
            if pointer == 0:  # an entry for others to refer to, which they do by how far behind it they stand
                encodings[at] = _encoding(body, at + 8)
            elif entry := _entry(body, at + 8, address, encodings.get(at + 4 - pointer, 0x1B)):
                found.append(entry)
        except (ValueError, IndexError, struct.error):
            break
        at += 4 + length
    return np.array(sorted(found), np.uint64).reshape(-1, 2)


def _entry(body: bytes, at: int, address: int, encoding: int) -> tuple[int, int] | None:
    """The range of one function."""
    form = _FORMATS.get(encoding & 0x0F)
    if form is None or encoding & 0x70 not in {0, _RELATIVE}:
        return None
    size = struct.calcsize(form)
    (start,) = struct.unpack_from(form, body, at)
    (length,) = struct.unpack_from(form.upper() if size < 8 else form, body, at + size)
    if encoding & 0x70 == _RELATIVE:
        start += address + at
    return (start, start + length) if 0 < start < 1 << 63 and length > 0 else None


def _encoding(body: bytes, at: int) -> int:
    """The encoding of pointers in a common entry's functions."""
    end = body.index(b"\0", at + 1)
    augmentation = body[at + 1 : end]
    if not augmentation.startswith(b"z"):
        return 0
    at = end + 1
    for _ in range(4):  # code alignment, data alignment, return register, length of what follows
        while body[at] & 0x80:
            at += 1
        at += 1
    for letter in augmentation[1:].decode(errors="replace"):
        if letter == "R":
            return body[at]
        if letter == "P":
            form = _FORMATS.get(body[at] & 0x0F, "<Q")
            at += 1 + struct.calcsize(form)
        elif letter == "L":
            at += 1
    return 0
