"""Rows that came with others and that nobody asked for yet: where they lie, and which are on their way."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.store.reading.neighbours import NeighbourBlock

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
    """A wait for a sample of a block that is on its way."""

    number: int
    key: str
    place: int


class BlockPool:
    """The kept rows, oldest first, and the blocks on their way. Used by the fetcher's loop alone.

    ``free`` is called with the offset of each row that is let go without having been asked for.
    """

    def __init__(self, memory: int, free: Callable[[int], None]) -> None:
        self._most, self._free = int(KEPT * memory), free
        self._kept: dict[int, Keeping] = {}
        self._coming: dict[range, list[Waiting]] = {}
        self.bytes = 0
        """Of kept rows."""
        self.others = 0
        """Rows on their way beside those that blocks were asked for by."""

    def rows(self, block: NeighbourBlock) -> int:
        """The number of rows that have to be read for this sample: none if it is kept or on its way."""
        samples = block.samples
        return 0 if block.place in self._kept or samples in self._coming else len(samples)

    def take(self, place: int) -> Keeping | None:
        """The kept row of that sample, which is the caller's from now on."""
        kept = self._kept.pop(place, None)
        if kept is not None:
            self.bytes -= kept.room
        return kept

    def join(self, block: NeighbourBlock, waiting: Waiting) -> bool:
        """Wait for the block. True where it is on nobody's way: the caller has it read."""
        coming = self._coming.get(block.samples)
        if coming is not None:
            coming.append(waiting)
            return False
        self._coming[block.samples] = [waiting]
        self.others += block.before + block.after
        return True

    def end(self, block: NeighbourBlock) -> list[Waiting]:
        """The block came, or will not come: who waits for a sample of it."""
        self.others -= block.before + block.after
        return self._coming.pop(block.samples)

    def makes_room(self, size: int) -> bool:
        """Make room for a row of that size, dropping the rows that were kept longest; False if it may not be kept."""
        if size > self._most:
            return False
        while self.bytes + size > self._most:
            self._let_go(next(iter(self._kept)))
        return True

    def keep(self, place: int, kept: Keeping) -> None:
        """The row of that sample is here, and nobody asked for it."""
        self._let_go(place)  # it came before, with another block
        self._kept[place] = kept
        self.bytes += kept.room

    def forget(self) -> None:
        """Drop all kept rows, which nobody needs; what is on its way still comes."""
        for place in tuple(self._kept):
            self._let_go(place)

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove these numbers from the rows on their way: nobody waits for them any more."""
        gone = set(numbers)
        for waiting in self._coming.values():
            waiting[:] = [each for each in waiting if each.number not in gone]

    def _let_go(self, place: int) -> None:
        kept = self.take(place)
        if kept is not None:
            self._free(kept.offset)
