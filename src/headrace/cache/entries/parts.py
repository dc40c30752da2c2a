"""A value taken apart, and its way back: what kinds of values tell the codec, and what they are given to build from."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.cache.entries.strides import overlapping
from headrace.core.errors import CacheError

ALIGN = 64


class NotKept(CacheError):
    """A sample has a value that no entry can hold whole."""

    def __init__(self, reason: str, path: str = "") -> None:
        """``reason`` goes on after the value's place in the sample, which is found on the way out."""
        super().__init__(reason)
        self.reason, self.path = reason, path

    def within(self, step: str) -> "NotKept":
        """The same error, seen from the value that holds the value."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"sample{self.path} {self.reason}"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotKept, (self.reason, self.path)


class Corrupt(CacheError):
    """Bytes that are no entry, or not the whole of one."""


class Parts:
    """The parts of a value: ``tokens`` for its types, ``numbers`` in their order, and pieces of memory."""

    __slots__ = ("_arrays", "_find", "_seen", "numbers", "pieces", "tokens")

    def __init__(self, find: "Callable[[type], Describer]") -> None:
        """``find``: who takes apart values of exactly this type; raises ``NotKept``."""
        self._find = find
        self.tokens: list[bytes] = []
        self.numbers: list[int | float] = []
        self.pieces: list[tuple[int, memoryview | bytes]] = []
        self._seen: dict[int, int] = {}
        self._arrays: list[Any] = []

    def add(self, value: Any, step: str | None = None) -> None:
        """Take one more value apart; ``step`` leads to it from the value that holds it."""
        try:
            self._find(type(value))(value, self)
        except NotKept as error:
            raise (error if step is None else error.within(step)) from None

    def again(self, value: Any) -> bool:
        """True if this very object, which can be changed, stands in the sample already; then that is noted."""
        # By identity, as long as the sample holds them all: no id is used twice meanwhile.
        number = self._seen.get(id(value))
        if number is None:
            self._seen[id(value)] = len(self._seen)
            return False
        self.tokens.append(b"r")
        self.numbers.append(number)
        return True

    def array(self, array: Any, content: memoryview) -> None:
        """The content of an array that can be changed, which no other value of the sample may have a part of."""
        self._arrays.append(array)
        self.pieces.append((ALIGN, content))

    def check(self) -> None:
        """Raises ``NotKept`` where a change of one value would show in another."""
        if len(self._arrays) > 1 and overlapping(self._arrays):
            raise NotKept("holds two arrays or tensors that share memory: return a copy of one of them")


class Body:
    """The bytes of a value, read from the front. ``made`` are the values so far that can be changed."""

    __slots__ = ("_at", "made", "memory", "take")

    def __init__(self, memory: memoryview, numbers: Iterator[Any], at: int) -> None:
        """``take`` gives the next of the numbers."""
        self.memory, self.take, self._at = memory, numbers.__next__, at
        self.made: list[Any] = []

    def piece(self, size: int, align: int = 1) -> memoryview:
        """The next ``size`` bytes."""
        at = -(-self._at // align) * align
        if size < 0 or at + size > len(self.memory):
            raise ValueError(f"{size} bytes at {at} of {len(self.memory)}")
        self._at = at + size
        return self.memory[at : at + size]


Describer = Callable[[Any, Parts], None]
Builder = Callable[[Body], Any]


class Reading:
    """A layout, read token by token."""

    def __init__(self, layout: bytes, kinds: "dict[str, CodableKind]") -> None:
        self._tokens, self._kinds = iter(layout.decode("ascii").split("\n")), kinds
        self._formats = ["<"]
        self.build = self.following()
        if next(self._tokens, None) is not None:
            raise ValueError("more than one value")
        self.numbers = struct.Struct("".join(self._formats))

    def expect(self, formats: str) -> None:
        """The numbers that the value at hand comes with, as ``struct`` writes them."""
        self._formats.append(formats)

    def following(self) -> Builder:
        """The builder of the value that the next token begins."""
        token = next(self._tokens)
        return self._kinds[token[0]].builder(token, self)


class CodableKind(Protocol):
    """A way to keep values of certain types. No type that a layout names is looked up anywhere but in the kind
    itself.
    """

    letters: str
    """What its tokens begin with."""

    def describer(self, kind: type) -> Describer | None:
        """The describer that takes values of exactly this type apart; None: another kind does."""

    def builder(self, token: str, reading: Reading) -> Builder:
        """The builder of what begins with this token."""
