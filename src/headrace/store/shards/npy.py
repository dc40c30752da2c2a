"""Arrays as NPY files, which is how a payload holds one: whoever decodes payloads knows them."""

import math
from collections.abc import Sequence

import numpy as np

from headrace.store.shards.shard import DamagedShard

_MODES = {"L": 1, "P": 1, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4, "LA": 2, "PA": 2}
"""Bands of a byte each, by the name of a picture's mode."""
_DEEP = {"I": "<i4", "F": "<f4", "I;16": "<u2"}


def npy(dtype: np.dtype, shape: Sequence[int], values: bytes | memoryview) -> bytes:
    """A NPY file with these values. Raises ``DamagedShard`` where they are not as many as the shape says."""
    if dtype.hasobject:
        raise DamagedShard(f"values of type {dtype} are objects, and those would be pickles")
    if len(values) != math.prod(shape) * dtype.itemsize:
        raise DamagedShard(f"an array of {'×'.join(map(str, shape)) or 'one'} {dtype} in {len(values)} bytes")
    shown = "".join(f"{side}, " for side in shape)
    head = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({shown}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(values)


def npy_of(array: "np.ndarray") -> bytes:
    """A NPY file of an array."""
    return npy(array.dtype, array.shape, np.ascontiguousarray(array).tobytes())


def picture(raw: bytes | memoryview) -> bytes:
    """A NPY file of a picture that was kept raw: width, height and length of the mode's name, the name, the pixels."""
    if len(raw) < 12:
        raise DamagedShard("a raw picture ends within its head")
    width, height, named = np.frombuffer(raw, "<u4", 3).tolist()
    mode, pixels = bytes(raw[12 : 12 + named][:16]).decode(errors="replace"), raw[12 + named :]
    if mode in _DEEP:
        return npy(np.dtype(_DEEP[mode]), (height, width), pixels)
    if mode == "1":
        if len(pixels) != height * -(-width // 8):
            raise DamagedShard(f"a raw picture of {width}×{height} in {len(pixels)} bytes")
        bits = np.unpackbits(np.frombuffer(pixels, np.uint8).reshape(height, -1), axis=1)[:, :width]
        return npy_of(bits * np.uint8(255))
    if mode not in _MODES:
        raise DamagedShard(f"a raw picture of the unknown mode {mode!r}")
    bands = _MODES[mode]
    return npy(np.dtype("u1"), (height, width, bands) if bands > 1 else (height, width), pixels)
