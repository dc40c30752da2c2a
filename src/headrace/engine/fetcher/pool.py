"""Rows that came with others and that nobody asked for yet: where they lie, and which are on their way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.store.neighbours import Block

KEPT = 0.8
"""The part of the memory that kept rows may take: more than is planned to be held. Beyond it, nobody asks for some."""


class Keeping(NamedTuple):
    """A row in the arena, and what was measured when it came."""

    offset: int
    label_kind: int
    size: int
    label: int
    room: int
    """Bytes, label included."""
    began: int
    took: int


class Waiting(NamedTuple):
    """Somebody waits for a sample of a block that is on its way."""

    number: int
    key: str
    began: int


@dataclass(frozen=True)
class _Coming:
    """A block that was asked for: who waits, and the rows that it may have beside."""

    waiting: list[Waiting]
    others: int


class Pool:
    """The kept rows, oldest first, and the blocks on their way. Used by the fetcher's loop alone.

    ``free`` is called with the offset of each row that is let go without having been asked for.
    """

    def __init__(self, memory: int, free: Callable[[int], None]) -> None:
        self._most, self._free = int(KEPT * memory), free
        self._kept: dict[str, Keeping] = {}
        self._coming: dict[int, _Coming] = {}
        self.bytes = 0
        """Of kept rows."""

    def rows(self, key: str, block: Block) -> int:
        """How many rows have to be read for this one: none where it is kept or on its way."""
        return 0 if key in self._kept or block.number in self._coming else 1 + block.before + block.after

    @property
    def others(self) -> int:
        """How many rows are on their way that nobody asked for."""
        return sum(each.others for each in self._coming.values())

    def take(self, key: str) -> Keeping | None:
        """The kept row with this key, which is the caller's from now on."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= kept.room
        return kept

    def joins(self, block: Block, waiting: Waiting) -> bool:
        """Whether the block is on its way; the sample is given with it then."""
        coming = self._coming.get(block.number)
        if coming is not None:
            coming.waiting.append(waiting)
        return coming is not None

    def begin(self, block: Block, first: Waiting) -> None:
        """The block is asked for, for this sample first."""
        self._coming[block.number] = _Coming([first], block.before + block.after)

    def end(self, block: Block) -> list[Waiting]:
        """The block came, or will not come: who waits for a sample of it."""
        return self._coming.pop(block.number).waiting

    def makes_room(self, size: int) -> bool:
        """Whether a row of that size may be kept: those that were kept longest give way."""
        if size > self._most:
            return False
        while self.bytes + size > self._most:
            self._let_go(next(iter(self._kept)))
        return True

    def keep(self, key: str, kept: Keeping) -> None:
        """The row is here, and nobody asked for it."""
        self._let_go(key)  # it came before, with another block
        self._kept[key] = kept
        self.bytes += kept.room

    def forget(self) -> None:
        """Nobody needs any of it; what is on its way still comes."""
        for key in tuple(self._kept):
            self._let_go(key)

    def drop(self, numbers: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        gone = set(numbers)
        for coming in self._coming.values():
            coming.waiting[:] = [each for each in coming.waiting if each.number not in gone]

    def _let_go(self, key: str) -> None:
        kept = self.take(key)
        if kept is not None:
            self._free(kept.offset)
