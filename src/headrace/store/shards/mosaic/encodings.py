"""Contents of MDS columns, by their encoding: metadata, or a payload. Nothing is unpickled."""

import struct
from collections.abc import Callable, Sequence

import numpy as np

from headrace.store.base import Kind, Scalar
from headrace.store.shards.npy import npy, picture
from headrace.store.shards.shard import DamagedShard

NUMBERS = {
    "int": struct.Struct("<q"),
    **{f"int{bits}": struct.Struct(f"<{code}") for bits, code in zip((8, 16, 32, 64), "bhiq", strict=True)},
    **{f"uint{bits}": struct.Struct(f"<{code}") for bits, code in zip((8, 16, 32, 64), "BHIQ", strict=True)},
    **{f"float{bits}": struct.Struct(f"<{code}") for bits, code in zip((16, 32, 64), "efd", strict=True)},
}
TEXTS: dict[str, tuple[Kind, Callable[[str], Scalar]]] = {
    "str": (Kind.TEXT, str),
    "json": (Kind.TEXT, str),
    "str_int": (Kind.INTEGER, int),
    "str_float": (Kind.NUMBER, float),
    "str_decimal": (Kind.TEXT, str),
}
AS_THEY_ARE = ("bytes", "jpeg", "png", "jpegarray", "jpeg_array", "list[jpeg]", "list[png]", "list[pil]")
"""Payloads that are given as they lie there; of several pictures in one, with their number and lengths before them."""
_DTYPES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4",
    64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
_NAMES = {np.dtype(dtype).name: dtype for dtype in _DTYPES.values()}


def kind_of(encoding: str) -> Kind | None:
    """The kind of a column, if that is metadata; else None."""
    if encoding in NUMBERS:
        return Kind.NUMBER if encoding.startswith("float") else Kind.INTEGER
    return TEXTS[encoding][0] if encoding in TEXTS else None


def is_blob(encoding: str) -> bool:
    """True if a column may be a payload by itself, without being asked for."""
    return kind_of(encoding) is None and encoding != "pkl"


def decoded(raw: bytes | memoryview, encoding: str) -> Scalar:
    """A value of a column for which ``kind_of`` has an answer."""
    try:
        if encoding in NUMBERS:
            number = NUMBERS[encoding]
            if len(raw) != number.size:
                raise ValueError(f"it has {len(raw)} bytes")
            value: Scalar = number.unpack(raw)[0]
        else:
            value = TEXTS[encoding][1](bytes(raw).decode())
    except ValueError as error:
        raise DamagedShard(f"{bytes(raw[:20])!r} is no {encoding}: {error}") from None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DamagedShard(f"{bytes(raw[:20])!r} is a number of more than 64 bits")
    return value


def payload(raw: bytes | memoryview, encoding: str) -> bytes | memoryview:
    """The payload that a column is: arrays and raw pictures as NPY files, all else as it is."""
    if encoding == "pil":
        return picture(raw)
    if encoding == "ndarray" or encoding.startswith("ndarray:"):
        return _array(raw, encoding.split(":")[1:])
    return raw


def check_payload(name: str, encoding: str) -> None:
    """Raises ``DamagedShard`` where a column cannot be read at all."""
    if encoding == "pkl":
        raise DamagedShard(f"column {name!r} is a pickle, which would run whatever is in it: it is not read")
    known = encoding in AS_THEY_ARE or encoding in NUMBERS or encoding in TEXTS or encoding == "pil"
    if not known and encoding.partition(":")[0] != "ndarray":
        raise DamagedShard(f"column {name!r} has the encoding {encoding!r}, which is not known here")


def _array(raw: bytes | memoryview, static: Sequence[str]) -> bytes:
    """Type and shape stand before the values, unless the encoding itself has them."""
    at = 0
    try:
        if static and static[0]:
            dtype = _NAMES[static[0]]
        else:
            dtype, at = _DTYPES[raw[0]], 1
        if len(static) > 1:
            shape = tuple(int(side) for side in static[1].split(","))
        else:
            sides, width = raw[at] >> 2, 1 << (raw[at] & 3)
            shape = struct.unpack_from(f"<{sides}{'BHIQ'[raw[at] & 3]}", raw, at + 1)
            at += 1 + sides * width
    except (LookupError, ValueError, struct.error):
        raise DamagedShard(f"{bytes(raw[:20])!r} is no array") from None
    return npy(np.dtype(dtype), shape, raw[at:])
