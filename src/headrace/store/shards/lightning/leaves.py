"""Contents of the leaves of LitData's samples, by their data format: metadata, or a payload. Nothing is unpickled."""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.store.base import Kind, Scalar
from headrace.store.shards.npy import npy, picture
from headrace.store.shards.shard import DamagedShard

KINDS = {"str": Kind.TEXT, "text": Kind.TEXT, "int": Kind.INTEGER, "float": Kind.NUMBER, "bool": Kind.TRUTH}
PICKLES = ("pickle", "graph")
_SIZES = {"int": 8, "float": 8, "bool": 1}
_OF_NUMPY = (*("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?"),)
_OF_TORCH = {
    **dict.fromkeys((0, 1), "<f4"), **dict.fromkeys((2, 3), "<f8"), **dict.fromkeys((4, 5), "<c8"),
    **dict.fromkeys((6, 7), "<c16"), **dict.fromkeys((8, 9), "<f2"), 11: "u1", 12: "i1",
    **dict.fromkeys((13, 14), "<i2"), **dict.fromkeys((15, 16), "<i4"), **dict.fromkeys((17, 18), "<i8"),
    19: "?", 20: "<u2",
}  # fmt: skip
"""Types by their numbers. bfloat16, which is number 10, is none of numpy's."""
DEEPEST = 64


def kind_of(data_format: str) -> Kind | None:
    """The kind of a leaf, if that is metadata; else None."""
    return KINDS.get(data_format)


def check(name: str, data_format: str) -> None:
    """Raises ``DamagedShard`` where a leaf cannot be read as a payload or label."""
    if data_format.partition(":")[0] in PICKLES or "pickle" in data_format:
        raise DamagedShard(f"{name!r} is a pickle ({data_format}), which would run whatever is in it: it is not read")


def decoded(raw: bytes | memoryview, data_format: str) -> Scalar:
    """A value of a leaf for which ``kind_of`` has an answer."""
    if len(raw) != _SIZES.get(data_format, len(raw)):
        raise DamagedShard(f"an {data_format} in {len(raw)} bytes")
    if data_format == "int":
        return int.from_bytes(raw, "little", signed=True)
    if data_format == "float":
        (number,) = struct.unpack("<d", raw)
        return float(number)
    if data_format == "bool":
        return raw[0] != 0
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise DamagedShard(f"{bytes(raw[:20])!r} is no text: {error}") from None


def payload(raw: bytes | memoryview, data_format: str) -> bytes | memoryview:
    """The payload that a leaf is: arrays and raw pictures as NPY files, all else as it is."""
    what = data_format.partition(":")[0]
    try:
        if what == "pil":
            return picture(raw)
        if what == "numpy":
            kind, sides = struct.unpack_from("<II", raw)
            return npy(np.dtype(_OF_NUMPY[kind]), struct.unpack_from(f"<{_few(sides)}I", raw, 8), raw[8 + 4 * sides :])
        if what == "tensor":
            kind, sides = struct.unpack_from(">II", raw)
            return npy(np.dtype(_OF_TORCH[kind]), struct.unpack_from(f">{_few(sides)}I", raw, 8), raw[8 + 4 * sides :])
        if what in {"no_header_numpy", "no_header_tensor"}:
            dtype = dtype_of(data_format)
            return npy(dtype, (len(raw) // dtype.itemsize,), raw)
    except (LookupError, struct.error) as error:
        raise DamagedShard(f"{bytes(raw[:20])!r} is no {what}: {error}") from None
    return raw


def dtype_of(data_format: str) -> "np.dtype[Any]":
    """The type of the values of an array without a head. Raises ``DamagedShard``."""
    what, _, number = data_format.partition(":")
    try:
        return np.dtype((_OF_NUMPY if what.endswith("numpy") else _OF_TORCH)[int(number)])
    except (LookupError, ValueError):
        raise DamagedShard(f"{data_format!r} are values of a type that numpy does not have") from None


def names_of(spec: Any, count: int) -> list[str]:
    """A name for each leaf, from the JSON that tells the samples' structure. Raises ``DamagedShard``."""
    try:
        tree = json.loads(spec)[1] if isinstance(spec, str) else None
        names = [".".join(path) or "data" for path in _paths(tree, ())] if tree is not None else []
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DamagedShard(
            "data_spec is not the JSON that tells a sample's structure: an old index has a pickle there"
        ) from None
    if len(names) != count:
        names = ["data"] if count == 1 else [str(number) for number in range(count)]
    if len(set(names)) != len(names):
        raise DamagedShard("two parts of a sample have the same name")
    return names


def _paths(tree: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if len(above) > DEEPEST:
        raise ValueError("it is nested too deeply")
    if tree["type"] is None:
        yield above
        return
    inner: Sequence[Any] = tree["children_spec"]
    context = tree.get("context")
    keys = json.loads(context) if "dict" in str(tree["type"]).lower() and isinstance(context, str) else None
    if not isinstance(keys, list) or len(keys) != len(inner):
        keys = [str(number) for number in range(len(inner))]
    for key, each in zip(keys, inner, strict=True):
        yield from _paths(each, (*above, str(key)))


def _few(sides: int) -> int:
    if sides > DEEPEST:
        raise DamagedShard(f"an array of {sides} dimensions")
    return sides
