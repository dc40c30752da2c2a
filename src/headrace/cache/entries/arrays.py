"""Numpy's arrays and scalars, taken apart and built again: with dtype, shape, strides, and read-only if they were."""

import json
import math
from typing import Any

import numpy as np

from headrace.cache.entries.parts import ALIGN, Body, Builder, Describer, NotKept, Parts, Reading
from headrace.cache.entries.strides import Shape, flat, spread, strides_of

_PLAIN = "biufcmM?SU"
_SCALARS = frozenset(np.sctypeDict.values()) - {np.void, np.object_}


def _text_of(dtype: np.dtype[Any]) -> str:
    """The text from which ``_dtype_of`` makes a type again."""
    described = _described(dtype)
    if dtype.kind in _PLAIN and not _noted(dtype):
        return dtype.str
    if described is None or _noted(dtype) or _dtype_of(described) != dtype or dtype.isalignedstruct:
        raise NotKept(f"is a numpy.ndarray of {dtype!r}, which cannot be kept in a cache")
    return described


def _described(dtype: np.dtype[Any]) -> str | None:
    """The description of a structured type, as JSON; None for any other type and for one that holds objects."""
    if dtype.kind != "V" or dtype.hasobject:
        return None
    return json.dumps(np.lib.format.dtype_to_descr(dtype))


def _noted(dtype: np.dtype[Any]) -> bool:
    """True if metadata are attached to the type, or to a type within it."""
    inner = [dtype.fields[name][0] for name in dtype.names] if dtype.names and dtype.fields else []
    return dtype.metadata is not None or any(map(_noted, [*inner, *([dtype.subdtype[0]] if dtype.subdtype else [])]))


def _dtype_of(text: str) -> np.dtype[Any]:
    """The type that a text of ``_text_of`` stands for; only types without Python objects in them."""
    found = np.lib.format.descr_to_dtype(_tuples(json.loads(text))) if text[0] in '["' else np.dtype(text)
    if found.hasobject or found.kind not in _PLAIN + "V":
        raise ValueError(text)
    return found


def _tuples(described: Any) -> Any:
    """The description with tuples where numpy wants them: JSON has none."""
    if not isinstance(described, list):
        return described
    return [_field(each) for each in described]


def _field(described: list[Any]) -> tuple[Any, ...]:
    name, kind, *shape = described
    return (tuple(name) if isinstance(name, list) else name, _tuples(kind), *(tuple(each) for each in shape))


_tokens: dict[tuple[np.dtype[Any], int, bool], bytes] = {}


def _array(value: Any, parts: Parts) -> None:
    if parts.again(value):
        return
    dtype, shape, writeable = value.dtype, value.shape, value.flags.writeable
    usual = 1 not in shape or value.strides == strides_of(shape, dtype.itemsize)
    if usual and value.flags.c_contiguous and 0 not in shape:
        content, order = value.reshape(-1), b"C"
    else:
        # Not in C's order, but dense: memory is kept as it lies, and strides say how to read it.
        content, order = flat(value), b"D"
        if content is None:
            # With gaps, or elements in the same place: only the elements are kept.
            content, order = np.ascontiguousarray(value).reshape(-1), b"G"
    key = (dtype, value.ndim, writeable)
    if dtype.metadata is not None or dtype.names is not None or (token := _tokens.get(key)) is None:
        token = b"%d %s %s" % (value.ndim, b"w" if writeable else b"r", _text_of(dtype).encode())
        if len(_tokens) < 1000:
            _tokens[key] = token
    parts.tokens.append(b"n" + order + token)
    parts.numbers += shape
    if order != b"C":
        parts.numbers += value.strides
    parts.array(value, content.view(np.uint8).data if dtype.itemsize and value.size else memoryview(b""))


def _made_array(token: str, reading: Reading) -> Builder:
    rank, flag, text = token[2:].split(" ", 2)
    order, ndim, dtype = token[1], int(rank), _dtype_of(text)
    unit, read_only = dtype.itemsize, {"r": True, "w": False}[flag]
    reading.expect("q" * ndim if order == "C" else "q" * (2 * ndim))
    make = {"C": None, "D": _dense, "G": _gaps}[order]

    def build(body: Body) -> Any:
        take = body.take
        shape = tuple([take() for _ in range(ndim)])
        if ndim and min(shape) < 0:
            raise ValueError(shape)
        piece = body.piece(unit * math.prod(shape), ALIGN)
        if make is not None:
            found = make(shape, dtype, piece, tuple([take() for _ in shape]))
        else:
            found = np.ndarray(shape, dtype, piece) if piece else np.empty(shape, dtype)
        if read_only:
            found.flags.writeable = False
        body.made.append(found)
        return found

    return build


def _dense(shape: Shape, dtype: np.dtype[Any], piece: memoryview, strides: Shape) -> Any:
    first, _ = spread(shape, strides, dtype.itemsize)
    memory = piece or memoryview(bytearray(1 + sum(map(abs, strides))))
    return np.ndarray(shape, dtype, memory, first, strides)


def _gaps(shape: Shape, dtype: np.dtype[Any], piece: memoryview, strides: Shape) -> Any:
    """An array in memory of its own, with gaps (or overlaps) as before."""
    first, span = spread(shape, strides, dtype.itemsize)
    found = np.ndarray(shape, dtype, np.empty(span, np.uint8), first, strides)
    found[...] = np.ndarray(shape, dtype, piece)
    return found


def _scalar(value: Any, parts: Parts) -> None:
    parts.tokens.append(b"s" + _text_of(value.dtype).encode())
    parts.pieces.append((1, value.tobytes()))


def _text(value: Any, parts: Parts) -> None:
    content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    parts.tokens.append(b"y" if isinstance(value, str) else b"z")
    parts.numbers.append(len(content))
    parts.pieces.append((1, content))


class ArrayKind:
    """Arrays that are no subclass, of numbers, truth values, times, texts, bytes and records of these; scalars."""

    letters = "nsyz"

    def describer(self, kind: type) -> Describer | None:
        """See ``CodableKind``."""
        if kind is np.ndarray:
            return _array
        if kind in {np.str_, np.bytes_}:
            return _text
        return _scalar if kind in _SCALARS else None

    def builder(self, token: str, reading: Reading) -> Builder:
        """See ``CodableKind``."""
        if token[0] == "n":
            return _made_array(token, reading)
        if token[0] == "s":
            dtype = _dtype_of(token[1:])
            return lambda body: np.frombuffer(body.piece(dtype.itemsize), dtype)[0]
        reading.expect("q")
        if token[0] == "y":
            return lambda body: np.str_(str(body.piece(body.take()), "utf-8", "surrogatepass"))
        return lambda body: np.bytes_(bytes(body.piece(body.take())))
