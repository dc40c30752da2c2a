"""What a value is, in 32 hexadecimal digits: the same in every process and on every host, another if anything changed.

Entries are found by the fingerprint of what made them, so a transform with another parameter, or a function with
another body, never meets what the old one left. What cannot be told apart is refused, not guessed.
"""

import enum
import functools
import hashlib
import json
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.core.errors import CacheError

Feed = Callable[[bytes], None]


def fingerprint(*values: Any) -> str:
    """Of plain values, arrays, functions, classes, and objects made of these; ``CacheError`` names what is none."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        _Reader(digest.update).read(value, "value")
    return digest.hexdigest()


class _Reader:
    def __init__(self, feed: Feed) -> None:
        self._feed, self._open = feed, set[int]()

    def read(self, value: Any, path: str) -> None:
        if id(value) in self._open:
            self._feed(b"<again>")
            return
        self._open.add(id(value))
        try:
            self._read(value, path)
        finally:
            self._open.discard(id(value))

    def _tagged(self, tag: str, content: bytes = b"") -> None:
        self._feed(f"<{tag}:{len(content)}>".encode() + content)

    def _read(self, value: Any, path: str) -> None:
        if isinstance(value, enum.Enum):
            self._tagged("enum", f"{_qualified(type(value))}.{value.name}".encode())
        elif value is None or isinstance(value, (bool, int, float, complex, str)):
            self._tagged(type(value).__name__, repr(value).encode())
        elif isinstance(value, (bytes, bytearray, memoryview)):
            self._tagged("bytes", bytes(value))
        elif isinstance(value, (list, tuple)) and value and all(type(each) is str for each in value):
            self._tagged(f"{type(value).__name__} of texts", json.dumps(value).encode())  # a million names, at once
        elif isinstance(value, (list, tuple)):
            self._tagged(type(value).__name__, str(len(value)).encode())
            for at, each in enumerate(value):
                self.read(each, f"{path}[{at}]")
        elif isinstance(value, (set, frozenset)):
            self._tagged("set", "".join(sorted(fingerprint(each) for each in value)).encode())
        elif isinstance(value, dict):
            self._tagged("dict", str(len(value)).encode())
            for key in sorted(value, key=repr):
                self.read(key, f"{path} key")
                self.read(value[key], f"{path}[{key!r}]")
        else:
            self._object(value, path)

    def _object(self, value: Any, path: str) -> None:  # noqa: C901, PLR0912  (one branch per kind of thing)
        told = getattr(value, "cache_fingerprint", None)
        if isinstance(value, type):
            self._tagged("type", _qualified(value).encode())
        elif callable(told):
            self._tagged("told", _qualified(type(value)).encode())
            self.read(told(), f"{path}.cache_fingerprint()")
        elif isinstance(value, types.MethodType):
            self.read(value.__func__, f"{path}.__func__")
            self.read(value.__self__, f"{path}.__self__")
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.BuiltinFunctionType):
            self._tagged("builtin", f"{value.__module__}.{value.__qualname__}".encode())
        elif isinstance(value, types.CodeType):
            self._code(value, path)
        elif isinstance(value, functools.partial):
            self._tagged("partial")
            self.read((value.func, value.args, value.keywords), f"{path}.partial")
        elif isinstance(value, types.ModuleType):
            self._tagged("module", value.__name__.encode())
        elif hasattr(value, "__array__"):
            array = np.ascontiguousarray(value)
            if array.dtype.kind == "O":
                raise _unknown(value, path)
            self._tagged("array", f"{array.dtype.str}{array.shape}".encode())
            self._feed(array.tobytes())
        elif hasattr(value, "__dict__"):
            self._tagged("object", _qualified(type(value)).encode())
            self.read(vars(value), f"{path} ({type(value).__name__})")
        elif type(value).__module__ in {"torch", "pathlib", "re", "datetime", "decimal"}:  # printed, they say all
            self._tagged(_qualified(type(value)), str(value).encode())
        else:
            raise _unknown(value, path)

    def _function(self, value: types.FunctionType, path: str) -> None:
        self._tagged("function", f"{value.__module__}.{value.__qualname__}".encode())
        self.read(value.__code__, f"{path}.__code__")
        self.read(value.__defaults__, f"{path}.__defaults__")
        self.read(value.__kwdefaults__, f"{path}.__kwdefaults__")
        for at, cell in enumerate(value.__closure__ or ()):
            self.read(cell.cell_contents, f"{path}.__closure__[{at}]")

    def _code(self, value: types.CodeType, path: str) -> None:
        self._tagged("code", value.co_code)
        self.read((value.co_names, value.co_consts), f"{path} constants")


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _unknown(value: Any, path: str) -> CacheError:
    return CacheError(
        f"{path} is a {_qualified(type(value))}, and a cache cannot tell whether it changed: give the object that "
        "holds it a method `cache_fingerprint()` that returns a text or numbers to tell it by"
    )
