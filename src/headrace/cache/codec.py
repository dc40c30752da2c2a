"""Samples as bytes and back, without pickle: a typed description in JSON, then raw buffers, all under a checksum.

    magic 4 | version 2 | kind 2 | description bytes 4 | checksum 4 | total bytes 8 | description | buffers

Buffers begin on multiples of 64 from the start of an entry. What is decoded are views of the entry where a buffer
allows it; numbers and texts are part of the description. Types that are not known are refused by name: other people's
types are taught by a ``Kind``. Nothing in an entry names code.
"""

import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.core.errors import CacheError

MAGIC, VERSION = b"hrce", 1
_HEAD = struct.Struct("<4sHHIIQ")
ALIGN = 64
_PLAIN = (bool, int, float, str, type(None))
_NUMBERS = "biufcmM?"


class Kind(Protocol):
    """How values of a type that belongs to somebody else are kept: as one array and a few plain facts."""

    name: str

    def matches(self, value: Any) -> bool: ...

    def apart(self, value: Any) -> tuple[Any, Any]:
        """The facts (what JSON can hold) and the array."""

    def together(self, facts: Any, array: Any) -> Any:
        """What ``apart`` was given; ``array`` is read-only memory of the cache."""


class NotKept(CacheError):
    """A sample has a value of a type that no entry can hold."""


class Corrupt(CacheError):
    """Bytes that are no entry, or not the whole of one."""


class Encoded(NamedTuple):
    """An entry ready to be written: ``size`` bytes."""

    head: bytes
    buffers: list[tuple[int, memoryview]]
    size: int

    def write(self, target: memoryview) -> None:
        """Into ``target``, which has ``size`` bytes. The checksum is taken of what was written."""
        target[: len(self.head)] = self.head
        at = len(self.head)
        for place, buffer in self.buffers:
            target[at:place] = bytes(place - at)
            target[place : place + buffer.nbytes] = buffer
            at = place + buffer.nbytes
        target[_HEAD.size - 12 : _HEAD.size - 8] = struct.pack("<I", _checksum(target))

    def bytes(self) -> "bytearray":
        """The same, in memory of its own."""
        found = bytearray(self.size)
        self.write(memoryview(found))
        return found


class Codec:
    """Knows bytes, numbers, texts, None, numpy arrays, tuples, lists and dicts with texts as keys, and its kinds."""

    def __init__(self, kinds: Sequence[Kind] = ()) -> None:
        """``kinds`` are asked in order, before what is known anyway."""
        self._kinds = {kind.name: kind for kind in kinds}

    def encode(self, value: Any) -> Encoded:
        """Raises ``NotKept`` for what cannot be kept. The value must not change before it is written."""
        buffers: list[memoryview] = []
        tree = self._describe(value, buffers, "sample")
        text = json.dumps(tree, separators=(",", ":")).encode()
        at, placed = _HEAD.size + len(text), []
        for buffer in buffers:
            at = -(-at // ALIGN) * ALIGN
            placed.append((at, buffer))
            at += buffer.nbytes
        head = _HEAD.pack(MAGIC, VERSION, 0, len(text), 0, at) + text
        return Encoded(head, placed, at)

    def decode(self, entry: memoryview | bytes | bytearray, *, verify: bool = True, own: bool = False) -> Any:
        """The value. Arrays are views of ``entry``, read-only unless it is the caller's ``own``; raises ``Corrupt``."""
        entry = memoryview(entry)
        size, length = check(entry, verify=verify)
        try:
            tree = json.loads(bytes(entry[_HEAD.size : _HEAD.size + length]))
        except ValueError as error:
            msg = f"an entry's description cannot be read: {error}"
            raise Corrupt(msg) from error
        try:
            whole = entry[:size] if own else entry[:size].toreadonly()
            found, _ = self._build(tree, whole, _HEAD.size + length)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            msg = f"an entry's description makes no sense: {type(error).__name__}: {error}"
            raise Corrupt(msg) from error
        return found

    def _describe(self, value: Any, buffers: list[memoryview], path: str) -> Any:  # noqa: PLR0911  (one per type)
        for kind in self._kinds.values():
            if kind.matches(value):
                facts, array = kind.apart(value)
                return {"k": kind.name, "f": facts, "a": self._describe(array, buffers, path)}
        if type(value) in _PLAIN:
            return {"p": value}
        if isinstance(value, (bytes, bytearray, memoryview)):
            buffers.append(memoryview(value).cast("B"))
            return {"b": len(buffers[-1])}
        if isinstance(value, np.generic):
            return {"s": self._describe(np.asarray(value), buffers, path)}
        if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
            array = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            buffers.append(memoryview(array))  # type: ignore[arg-type]
            return {"n": value.dtype.str, "d": list(value.shape)}
        if type(value) in {tuple, list}:
            members = [self._describe(each, buffers, f"{path}[{at}]") for at, each in enumerate(value)]
            return {"t" if type(value) is tuple else "l": members}
        if type(value) is dict and all(type(key) is str for key in value):
            return {"m": {key: self._describe(each, buffers, f"{path}[{key!r}]") for key, each in value.items()}}
        msg = (
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be kept in a cache: return "
            "tensors, numpy arrays, PIL images, bytes, numbers, texts, or tuples, lists and dicts (with texts as keys) "
            "of these from the stage that is cached"
        )
        raise NotKept(msg)

    def _build(self, tree: Any, entry: memoryview, at: int) -> tuple[Any, int]:  # noqa: PLR0911  (one per type)
        if "p" in tree:
            return tree["p"], at
        if "k" in tree:
            array, at = self._build(tree["a"], entry, at)
            return self._kinds[tree["k"]].together(tree["f"], array), at
        if "b" in tree:
            found, at = _piece(entry, at, tree["b"])
            return bytes(found), at
        if "s" in tree:
            scalar, at = self._build(tree["s"], entry, at)
            return scalar[()], at
        if "n" in tree:
            dtype, shape = np.dtype(tree["n"]), tuple(tree["d"])
            if dtype.kind not in _NUMBERS or min(shape, default=0) < 0:
                raise ValueError(tree["n"])
            found, at = _piece(entry, at, dtype.itemsize * math.prod(shape))
            return np.frombuffer(found, dtype).reshape(shape), at
        if "m" in tree:
            members = {}
            for key, each in tree["m"].items():
                members[key], at = self._build(each, entry, at)
            return members, at
        listed = []
        for each in tree["t"] if "t" in tree else tree["l"]:
            found_one, at = self._build(each, entry, at)
            listed.append(found_one)
        return (tuple(listed) if "t" in tree else listed), at


def check(entry: memoryview, *, verify: bool = True) -> tuple[int, int]:
    """The size of the entry that ``entry`` begins with, and of its description; raises ``Corrupt``."""
    if len(entry) < _HEAD.size:
        msg = f"{len(entry)} bytes are no entry of a cache"
        raise Corrupt(msg)
    magic, version, _, length, checksum, size = _HEAD.unpack_from(entry)
    if magic != MAGIC or version != VERSION:
        msg = f"this is no entry of version {VERSION}"
        raise Corrupt(msg)
    if size > len(entry) or _HEAD.size + length > size:
        msg = f"an entry of {size} bytes has {len(entry)}"
        raise Corrupt(msg)
    if verify and checksum != _checksum(entry[:size]):
        msg = "an entry is not what was written: its checksum differs"
        raise Corrupt(msg)
    return size, length


def _piece(entry: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    at = -(-at // ALIGN) * ALIGN
    if at + size > len(entry):
        raise ValueError(size)
    return entry[at : at + size], at + size


def _checksum(entry: memoryview) -> int:
    """Of all but its own place; 36 microseconds for 150 KB."""
    return zlib.crc32(entry[_HEAD.size - 8 :], zlib.crc32(entry[: _HEAD.size - 12]))
