"""Torch's tensors and torchvision's, for the cache's codec: with type, shape, strides, and what a subclass adds."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.cache.entries.parts import ALIGN, Body, Builder, Describer, NotKept, Parts, Reading
from headrace.cache.entries.strides import spread, strides_of

_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
_has_names: Callable[[Any], bool] = getattr(torch.Tensor, "has_names", lambda _: False)
"""Later releases of torch have no names for dimensions."""
_KNOWN = {dtype: name.encode() for name, dtype in _DTYPES.items()}
_NUMPY = {
    dtype: np.dtype(name)
    for name, dtype in _DTYPES.items()
    if name not in {"bfloat16", "complex32"} and not name.startswith("float8")
}
"""Those that numpy has too, which is quicker at taking memory and giving it."""
_SUBCLASSES = {
    "Image": (),
    "Video": (),
    "Mask": (),
    "BoundingBoxes": ("format", "canvas_size", "clamping_mode"),
    "KeyPoints": ("canvas_size",),
}
"""Of torchvision, with the facts that each has beside its elements."""


def _size(value: torch.Size, parts: Parts) -> None:
    parts.tokens.append(b"Z%d" % len(value))
    parts.numbers += value


def _tensor(value: torch.Tensor, parts: Parts) -> None:
    if vars(value):
        raise NotKept(f"is a torch.Tensor with attributes of its own: {', '.join(vars(value))}")
    if not parts.again(value):
        _elements(b"T", value, parts)


def _subclassed(value: torch.Tensor, parts: Parts) -> None:
    name, facts = type(value).__name__, dict(vars(value))
    unknown = set(facts) - set(_SUBCLASSES[name])
    if unknown:
        raise NotKept(f"is a {name} of torchvision with attributes of its own: {', '.join(sorted(unknown))}")
    if parts.again(value):
        return
    if "format" in facts:
        facts["format"] = facts["format"].name
    _elements(b"V" + name.encode() + b" ", value.as_subclass(torch.Tensor), parts)
    parts.add(tuple(facts.items()), " facts")


def _elements(token: bytes, value: torch.Tensor, parts: Parts) -> None:
    name = _KNOWN.get(value.dtype)
    if name is None or value.is_nested or value.layout is not torch.strided or not value.is_cpu or value.requires_grad:
        raise NotKept(
            "is a tensor that is sparse, nested, quantized, on a device or requires grad: these cannot be cached"
        )
    if value.is_conj() or value.is_neg() or _has_names(value):
        raise NotKept("is a tensor with names, or whose conjugate or negative is yet to be taken: return a plain one")
    shape, strides = tuple(value.shape), value.stride()
    memory, order = value, b"C"
    if not value.is_contiguous() or ((0 in shape or 1 in shape) and strides != strides_of(shape, 1)):
        dense = _dense(shape, strides)
        memory, order = (value.as_strided((value.numel(),), (1,)), b"D") if dense else (value.contiguous(), b"G")
    parts.tokens.append(b"%b%b%d %b" % (token, order, len(shape), name))
    parts.numbers += shape
    if order != b"C":
        parts.numbers += strides
    if value.dtype in _NUMPY and shape:
        content: Any = memory.numpy().reshape(-1).view(np.uint8)
    else:
        content = memory.reshape(-1).view(torch.uint8).numpy()
    parts.array(content if order != b"G" else _bytes_of(value), content.data)


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if each element has a place of its own, with none between them."""
    unit = 1
    for step, length in sorted((step, length) for step, length in zip(strides, shape, strict=True) if length > 1):
        if step != unit:
            return False
        unit *= length
    return 0 not in shape


def _bytes_of(value: torch.Tensor) -> Any:
    """The array that has exactly the bytes of a tensor with gaps."""
    if not value.numel():
        return np.empty(0, np.uint8)
    unit = value.itemsize
    bare = value.as_strided((1,), (1,)).view(torch.uint8).numpy()
    return np.lib.stride_tricks.as_strided(bare, (*value.shape, unit), (*(unit * step for step in value.stride()), 1))


def _made(token: str, reading: Reading) -> Builder:
    """The builder of a tensor, made of what follows the letter and name of a token."""
    rank, name = token[1:].split(" ")
    order, ndim, dtype = token[0], int(rank), _DTYPES[name]
    if order not in "CDG":
        raise ValueError(token)
    reading.expect("q" * ndim if order == "C" else "q" * (2 * ndim))
    unit, plain = dtype.itemsize, _NUMPY.get(dtype) if order == "C" else None

    def build(body: Body) -> torch.Tensor:
        take = body.take
        shape = tuple([take() for _ in range(ndim)])
        if ndim and min(shape) < 0:
            raise ValueError(shape)
        piece = body.piece(unit * math.prod(shape), ALIGN)
        if plain is not None and piece and not piece.readonly:
            return torch.from_numpy(np.ndarray(shape, plain, piece))
        if order == "C":
            return _over(piece, dtype).view(shape)
        strides = tuple([take() for _ in range(ndim)])
        if order == "D":
            return _over(piece, dtype).as_strided(shape, strides)
        return _scattered(piece, dtype, shape, strides)

    return build


def _over(piece: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """The tensor over a piece, without torch's warning about read-only memory, which is the cache's rule and not
    the user's mistake.
    """
    if not piece:
        return torch.empty(0, dtype=dtype)
    if not piece.readonly:
        return torch.frombuffer(piece, dtype=dtype)
    return torch.from_numpy(np.asarray(_Writable(np.frombuffer(piece, np.uint8)))).view(dtype)


class _Writable:
    """The same memory, as numpy's interface describes it to those who promise not to write."""

    def __init__(self, read_only: Any) -> None:
        self._held = read_only
        described = dict(read_only.__array_interface__)
        described["data"] = (described["data"][0], False)
        self.__array_interface__ = described


def _scattered(piece: memoryview, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor in memory of its own, with gaps (or overlaps) as before."""
    if not piece:
        return torch.empty(0, dtype=dtype).as_strided(shape, strides)
    unit = dtype.itemsize
    memory = np.empty(spread(shape, strides, 1)[1] * unit, np.uint8)
    target: Any = np.ndarray((*shape, unit), np.uint8, memory, 0, (*(unit * step for step in strides), 1))
    target[...] = np.ndarray((*shape, unit), np.uint8, piece)
    return torch.from_numpy(memory).view(dtype).as_strided(shape, strides)


class TensorKind:
    """Plain tensors in memory, torchvision's subclasses, and sizes. Other subclasses mean something we do not know."""

    letters = "TVZ"

    def describer(self, kind: type) -> Describer | None:
        """See ``Kind``."""
        if kind is torch.Tensor:
            return _tensor
        if kind is torch.Size:
            return _size
        library = sys.modules.get("torchvision.tv_tensors")
        name = kind.__name__
        return _subclassed if name in _SUBCLASSES and getattr(library, name, None) is kind else None

    def builder(self, token: str, reading: Reading) -> Builder:
        """See ``Kind``."""
        if token[0] == "Z":
            count = int(token[1:])
            reading.expect("q" * count)
            return lambda body: torch.Size([body.take() for _ in range(count)])
        if token[0] == "T":
            return _noted(_made(token[1:], reading))
        name, _, rest = token[1:].partition(" ")
        allowed, elements, facts = _SUBCLASSES[name], _made(rest, reading), reading.following()

        def build(body: Body) -> torch.Tensor:
            # Whoever wrote such an entry has it.
            from torchvision import tv_tensors  # type: ignore[import-untyped]  # noqa: PLC0415

            found: torch.Tensor = elements(body).as_subclass(getattr(tv_tensors, name))
            body.made.append(found)
            for key, value in facts(body):
                if key not in allowed:
                    raise ValueError(key)
                setattr(found, key, tv_tensors.BoundingBoxFormat[value] if key == "format" else value)
            return found

        return build


def _noted(build: Builder) -> Builder:
    def built(body: Body) -> Any:
        found = build(body)
        body.made.append(found)
        return found

    return built


def masked(values: torch.Tensor) -> torch.Tensor:
    """Marked as a mask, which torchvision's transforms crop and resize without new values."""
    from torchvision import tv_tensors  # noqa: PLC0415  (only where it is asked for)

    found: torch.Tensor = tv_tensors.Mask(values)
    return found
