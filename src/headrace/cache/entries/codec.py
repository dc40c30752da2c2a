"""Samples as bytes and back, without pickle: what comes back is equal and of the same types, or it was not kept.

A value is a *layout*, which says its types and nothing else, and a *body*: numbers (also lengths and shapes), then
pieces of memory, those of arrays on multiples of 64. Samples of the same types have the same layout, byte for byte.

Types that are not known, subclasses among them, are refused by name; others are taught by a ``CodableKind``. Nothing
in an entry names code.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.cache.entries.arrays import ArrayKind
from headrace.cache.entries.parts import ALIGN, Body, CodableKind, Corrupt, Describer, NotKept, Parts, Reading
from headrace.cache.entries.values import PlainKind

__all__ = ["ALIGN", "CodableKind", "Codec", "Corrupt", "Described", "NotKept"]

_READINGS = 4096
"""Layouts that are remembered with what they mean."""
_WRONG = (
    *(KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError, MemoryError, RuntimeError),
    *(StopIteration, struct.error, SyntaxError),
)
"""What building a value from bytes that mean none may raise: numpy's and torch's errors among them."""


class Described(NamedTuple):
    """A value taken apart: its layout, and a body of ``size`` bytes ready to be written."""

    layout: bytes
    buffers: list[tuple[int, memoryview | bytes]]
    """What the body consists of, each with its place in it, in order; between them are zeros."""
    size: int

    def write(self, target: memoryview, *, but_last: bool) -> None:
        """The body, into as many bytes as it has; ``but_last``: up to the last buffer."""
        at = 0
        for place, buffer in self.buffers[:-1] if but_last else self.buffers:
            if place > at:
                target[at:place] = bytes(place - at)
            at = place + len(buffer)
            target[place:at] = buffer
        target[at:] = bytes(len(target) - at)


class Codec:
    """Knows Python's own values, numpy's arrays and scalars, and its kinds. Used by one thread at a time."""

    def __init__(self, kinds: Sequence[CodableKind] = ()) -> None:
        """``kinds``: of what else there is."""
        known: tuple[CodableKind, ...] = (PlainKind(), ArrayKind(), *kinds)
        self._kinds: dict[str, CodableKind] = {letter: kind for kind in known for letter in kind.letters}
        self._known = known
        self._describers: dict[type, Describer] = {}
        self._readings: dict[bytes, Reading] = {}

    def describe(self, value: Any) -> Described:
        """Raises ``NotKept`` for what cannot be kept whole. The value must not change before it is written."""
        parts = Parts(self._describer)
        try:
            parts.add(value)
        except RecursionError:
            raise NotKept("is nested too deeply to be kept in a cache") from None
        parts.check()
        layout = b"\n".join(parts.tokens)
        numbers = self._reading(layout).numbers.pack(*parts.numbers)
        at = len(numbers)
        buffers: list[tuple[int, memoryview | bytes]] = [(0, numbers)]
        for align, content in parts.pieces:
            at = -(-at // align) * align
            buffers.append((at, content))
            at += len(content)
        return Described(layout, buffers, at)

    def rebuild(self, layout: bytes, body: memoryview) -> Any:
        """The value that was described. Arrays and tensors are views of ``body``, which is to be theirs alone if it
        is writable; where it is not, arrays are read-only, and tensors must not be written to. Raises
        ``Corrupt``, nothing else.
        """
        try:
            reading = self._reading(layout)
            numbers = reading.numbers
            return reading.build(Body(body, iter(numbers.unpack_from(body)), numbers.size))
        except _WRONG as error:
            raise Corrupt(f"an entry makes no sense: {type(error).__name__}: {error}") from error

    def _describer(self, kind: type) -> Describer:
        found = self._describers.get(kind)
        if found is not None:
            return found
        for each in self._known:
            found = each.describer(kind)
            if found is not None:
                self._describers[kind] = found
                return found
        raise NotKept(
            f"is a {kind.__module__}.{kind.__qualname__}, which cannot be kept in a cache: return tensors, numpy "
            "arrays, PIL images, bytes, numbers, texts, or tuples, lists, sets and dicts of these, and no subclasses "
            "of them, from the stage that is cached"
        )

    def _reading(self, layout: bytes) -> Reading:
        found = self._readings.get(layout)
        if found is None:
            if len(self._readings) >= _READINGS:
                self._readings.clear()
            found = self._readings[layout] = Reading(layout, self._kinds)
        return found
