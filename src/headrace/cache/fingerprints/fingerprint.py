"""Fingerprints of values, in 32 hexadecimal digits: the same in every process and on every host, another if
anything changed.

Entries are found by the fingerprint of what made them. In it are the values of an object's attributes, slots included;
the code of the functions, methods and classes that are the user's, and of whatever they reach by name, with the values
of the globals and class constants they name; and the versions of the libraries they reach. Comments, docstrings, line
numbers, files' names and the order of sets are not. What cannot be told is refused, not guessed.
"""

import enum
import functools
import hashlib
import logging
import types
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.cache.fingerprints import code, object_state
from headrace.cache.fingerprints.code_owners import PYTHON, Library, everywhere, library
from headrace.core.errors import CacheError

SIZE = 16
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Method(NamedTuple):
    """A method of a class, with what it reaches of that class, and nothing else of it."""

    kind: type
    name: str


class Held(NamedTuple):
    """Attributes of an object of a class, without the class."""

    kind: type
    values: Mapping[str, Any]


def fingerprint(*values: Any, asks: bool = True) -> str:
    """The fingerprint of plain values, arrays, functions, classes, and objects made of these; ``CacheError`` names
    what is none.

    ``asks``: whether objects with ``cache_fingerprint()`` are, which may take a while.
    """
    return Reader(asks=asks).whole(values)


MANY, LARGE = 1000, 1 << 16
"""Items of a container, and bytes of an array, from which on a look that is quick does not look within."""


class Remembered:
    """Digests of large things when they were last looked at; the things are told by being the same objects, and as
    long.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._known: dict[int, tuple[Any, Any, bytes]] = {}

    def find(self, value: Any) -> bytes | None:
        """The digest; None where it has to be looked at."""
        found = self._known.get(id(value))
        return found[2] if found is not None and found[0] is value and found[1] == _extent(value) else None

    def note(self, value: Any, digest: bytes) -> None:
        """Remember it, if it is large."""
        extent = _extent(value)
        if extent is not None:
            self._known[id(value)] = value, extent, digest


def _extent(value: Any) -> tuple[Any, ...] | None:
    """The facts that are seen at once of something large: tensors count how often they were changed. None: it is
    not large.
    """
    if type(value) in {list, tuple, dict, set, frozenset, str, bytes, bytearray}:
        return (len(value),) if len(value) > MANY else None
    size = getattr(value, "nbytes", None)
    if not isinstance(size, int) or size <= LARGE:
        return None
    return size, getattr(value, "_version", None), getattr(value, "__array_interface__", {}).get("data")


class Reader:
    """Digests values, each by its kind. Of one fingerprint."""

    def __init__(self, *, asks: bool = True, remembered: Remembered | None = None) -> None:
        """``asks``: whether objects with ``cache_fingerprint()`` are. ``remembered``: for a look that is quick, and
        leaves out those objects only that say that it takes a while (``asked_seldom``).
        """
        self._asks, self._remembered = asks, remembered
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}
        self._libraries: set[Library] = set()
        self.code = code.CodeReader(self)

    def whole(self, values: tuple[Any, ...]) -> str:
        """The fingerprint of all the values, with what they reach."""
        try:
            digests = [self.digest(value, "value") for value in values]
            reached = self.code.reached()
        except RecursionError:
            raise CacheError("what a cache is to be told by is nested too deeply: " + object_state.HOW) from None
        libraries = sorted({*self._libraries, *(everywhere() if self._libraries else ())})
        digests += [self._joined("reached", reached), self._joined("libraries", [repr(libraries).encode()])]
        return self._joined("whole", digests).hex()

    def uses(self, module: str) -> bool:
        """True if a module is a library's; then its version counts."""
        found = library(module)
        if found is not None:
            self._libraries.add(found)
        return found is not None

    def python(self) -> None:
        """Bytecode was read: it belongs to a version of Python."""
        self._libraries.add(PYTHON)

    def _joined(self, tag: str, parts: list[bytes]) -> bytes:
        return self.hashed(tag, *(b"%d:%b" % (len(part), part) for part in parts))

    def hashed(self, tag: str, *contents: Any) -> bytes:
        """The digest of buffers one after the other; a digest says of what kind it is."""
        digest = hashlib.blake2b(f"<{tag}>".encode(), digest_size=SIZE)
        for content in contents:
            digest.update(content)
        return digest.digest()

    def several(self, tag: str, values: Any, path: str) -> bytes:
        """The digest of several values in their order."""
        return self._joined(tag, [self.digest(value, path) for value in values])

    def digest(self, value: Any, path: str) -> bytes:
        """The digest of one value; ``path`` leads to it."""
        kind = type(value)
        if kind in PLAIN:
            return self.hashed(kind.__name__, value if kind is bytes else repr(value).encode("utf-8", "surrogatepass"))
        key = id(value)
        known = self._known.get(key)
        if known is not None:
            return known[1]
        remembered = self._remembered
        if remembered is not None and (digest := remembered.find(value)) is not None:
            return digest
        if key in self._open:
            # A loop, told by how far up it leads: where it was entered does not matter.
            return self.hashed("again", str(len(self._open) - self._open[key]).encode())
        self._open[key] = len(self._open)
        try:
            found = self._digest(value, path)
        finally:
            del self._open[key]
        # With the value: while it is held, no other one gets its id.
        self._known[key] = (value, found)
        if remembered is not None:
            remembered.note(value, found)
        return found

    def _digest(self, value: Any, path: str) -> bytes:  # noqa: PLR0911  (one per kind)
        kind = type(value)
        if kind in {list, tuple}:
            return self._listed(value, path)
        if kind is dict or kind is types.MappingProxyType:
            return self._dict(value, path)
        if kind in {set, frozenset}:
            return self._joined("set", sorted(self.digest(each, f"{path} member") for each in value))
        if kind in {bytearray, memoryview}:
            return self.hashed("bytes", bytes(value))
        if isinstance(value, enum.Enum):
            return self._joined("enum", [self.code.named(kind, path), value.name.encode()])
        if isinstance(value, logging.Logger):  # what is said about samples does not change them
            return self.hashed("logger")
        if isinstance(value, Held):
            return self._attributes(value.values, value.kind.__name__)
        if isinstance(value, Method):
            return self.code.method(value, path)
        mark = object_state.marked(value)
        if mark is not None and mark.version is not None and not isinstance(value, type):
            return self._joined("version", [code.title(value).encode(), self.digest(mark.version, f"{path} version")])
        if self.code.knows(value):
            return self.code.digest(value, path)
        if isinstance(value, functools.partial):
            beside = {name: each for name, each in vars(value).items() if name != object_state.MARK}
            return self.several("partial", (value.func, value.args, value.keywords, beside), path)
        return self._object(value, path)

    def _object(self, value: Any, path: str) -> bytes:
        kind = type(value)
        named = self.code.named(kind, path)
        told = getattr(value, "cache_fingerprint", None)
        if callable(told):
            name = f"{path}.cache_fingerprint()"
            asks = self._asks if self._remembered is None else not getattr(kind, "asked_seldom", False)
            return self._joined("told", [code.title(value).encode(), self.digest(told(), name) if asks else b""])
        content = object_state.array_of(value)
        if content is not None:
            facts, held = repr(content[0]).encode(), self._attributes(object_state.beside(value), path)
            return self._joined("array", [named, facts, self.hashed("content", *content[1:]), held])
        made, attributes = object_state.of(value, path)
        return self._joined("object", [named, self.digest(made, path), self._attributes(attributes, path)])

    def _attributes(self, values: Mapping[str, Any], path: str) -> bytes:
        items = sorted(values.items(), key=lambda item: str(item[0]))
        return self._joined(
            "held", [self.hashed(repr(name), self.digest(each, f"{path}.{name}")) for name, each in items]
        )

    def _listed(self, value: Any, path: str) -> bytes:
        """A million names, or numbers, at once."""
        tag, kinds = type(value).__name__, set(map(type, value))
        if kinds == {str}:
            text = "".join(value).encode("utf-8", "surrogatepass")
            return self.hashed(f"{tag} of texts", array("q", map(len, value)), text)
        if kinds in ({int}, {float}):
            try:
                return self.hashed(f"{tag} of {min(kinds, key=str)}", array("q" if int in kinds else "d", value))
            except OverflowError:
                pass
        if kinds == {tuple} and len(value) > 8 and len(widths := set(map(len, value))) == 1 and widths != {0}:
            return self.several(f"{tag} of rows", map(list, zip(*value, strict=True)), f"{path}[...]")
        return self._joined(tag, [self.digest(each, f"{path}[{at}]") for at, each in enumerate(value)])

    def _dict(self, value: Any, path: str) -> bytes:
        """The digest of a dict, with its order: who goes through it, as through operations by name, does so in
        that.
        """
        if len(value) > 1000 and all(type(key) is str for key in value):
            return self.several("large dict", (list(value), list(value.values())), f"{path}[...]")
        items = [
            self._joined("item", [self.digest(key, f"{path} key"), self.digest(each, f"{path}[{key!r}]")])
            for key, each in value.items()
        ]
        return self._joined("dict", items)
