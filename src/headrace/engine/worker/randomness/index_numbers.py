"""A number for every index object: equal for equal indices, in every process and in every run.

Neither ``hash`` (strings differ from run to run) nor a pickle (which depends on which objects are shared, and for
tensors on their storage) can give it. So an index is spelled out, value by value, and the spelling is hashed.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

DEEPEST = 64


def number(index: Any) -> int:
    """The number itself where the index is one, whatever its type; else 64 bits of its contents."""
    if isinstance(index, int):  # as nearly always
        return index
    index = _plain(index)
    if isinstance(index, int):
        return index
    return int.from_bytes(hashlib.blake2b(_spelled(index, 0), digest_size=8).digest(), "little")


def _plain(value: Any) -> Any:
    """A tensor, an array or one of its elements as Python's numbers in lists; a number that is whole as an integer."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        with suppress(Exception):  # of a sparse tensor, say, what it is made of is spelled instead
            value = value.tolist()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _spelled(value: Any, depth: int) -> bytes:
    """The value's contents, each part with its kind and length: different values are spelled differently."""
    if depth > DEEPEST:  # a value that contains itself, most likely; what was spelled so far has to do
        return b"!"
    value = _plain(value)
    for kind, letter, content in _ATOMS:
        if isinstance(value, kind):
            return _part(letter, content(value))
    return _container(value, depth + 1)


_ATOMS: tuple[tuple[type, bytes, Callable[[Any], bytes]], ...] = (
    (int, b"i", lambda value: str(int(value)).encode()),
    (str, b"s", lambda value: value.encode("utf-8", "surrogatepass")),
    (float, b"f", partial(struct.pack, "<d")),
    (complex, b"c", lambda value: struct.pack("<dd", value.real, value.imag)),
    (bytes, b"b", bytes),
    (bytearray, b"b", bytes),
    (memoryview, b"b", bytes),
    (type(None), b"n", lambda _: b""),
)


def _container(value: Any, depth: int) -> bytes:
    if isinstance(value, (tuple, list)):
        return _parts(b"l", (_spelled(item, depth) for item in value))
    if isinstance(value, dict):
        return _parts(b"d", sorted(_spelled(key, depth) + _spelled(item, depth) for key, item in value.items()))
    if isinstance(value, (set, frozenset)):
        return _parts(b"e", sorted(_spelled(item, depth) for item in value))
    if isinstance(value, os.PathLike):
        return _spelled(os.fspath(value), depth)
    if isinstance(value, type) or callable(value):
        return _part(b"t", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}".encode())
    return _object(value, depth)


def _object(value: Any, depth: int) -> bytes:
    """Any other object: its class, and what it says it has to be made from again."""
    name = f"{type(value).__module__}.{type(value).__qualname__}".encode()
    try:
        made_of = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  (the class is the user's; it cannot go to a worker either)
        return _part(b"o", name)
    if isinstance(made_of, str):
        return _part(b"o", name + b":" + made_of.encode())
    make, arguments, *rest = made_of
    lists = [list(part) if hasattr(part, "__next__") else part for part in rest[:3]]
    return _parts(b"o", [name, _spelled(make, depth), _spelled(arguments, depth), _spelled(lists, depth)])


def _part(kind: bytes, content: bytes) -> bytes:
    return kind + str(len(content)).encode() + b":" + content


def _parts(kind: bytes, parts: Iterable[bytes]) -> bytes:
    return _part(kind, b"".join(parts))
