"""Shared memory as a test sees it: words that can stop a worker between two stores, and slots that remember."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.sched import ledger_layout as W
from headrace.sched import native_ledger
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.ledger_layout import Dims


class Killed(Exception):
    """The worker was killed before this store."""


KILLED = (Killed,) if native_ledger.module is None else (Killed, native_ledger.module.Killed)


class Words:
    """Behaves as ``memoryview(...).cast("q")`` does. With a fuse, only so many further stores take effect.

    ``native``: ledgers over it are the native ones, whose stores burn the same fuse.
    """

    def __init__(self, count: int, *, native: bool = False) -> None:
        self._words = array("q", bytes(8 * count))
        self.buffer, self.native = memoryview(self._words), native
        self._cells = array("q", [-1, 0])  # stores that still take effect (-1: all), stores made

    @property
    def fuse(self) -> int | None:
        return None if self._cells[0] < 0 else self._cells[0]

    @fuse.setter
    def fuse(self, stores: int | None) -> None:
        self._cells[0] = -1 if stores is None else stores

    @property
    def stores(self) -> int:
        return self._cells[1]

    def lane(self, dims: Dims, number: int) -> LaneLedger:
        if self.native:
            return native_ledger.NativeLane(self, dims, number, fuse=self._cells)
        return LaneLedger(self, dims, number)

    def trainer(self, dims: Dims) -> TrainerLedger:
        if self.native:
            return native_ledger.NativeTrainer(self, dims, fuse=self._cells)
        return TrainerLedger(self, dims)

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._words[self._span(key)]
        return self._words[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, slice):
            assert 0 <= key < len(self._words)
            self._store(key, value)
            return
        span, values = self._span(key), list(value)
        assert span.stop - span.start == len(values)
        for at, word in enumerate(values, span.start):
            self._store(at, word)

    def _span(self, key: slice) -> slice:
        assert key.step is None
        assert 0 <= key.start <= key.stop <= len(self._words)
        return key

    def _store(self, at: int, value: int) -> None:
        assert -(1 << 63) <= value < 1 << 63
        if self._cells[0] == 0:
            raise Killed
        self._cells[0] -= self._cells[0] > 0
        self._cells[1] += 1
        self._words[at] = value


@dataclass
class Slab:
    """The slots' memory, cell by cell, and which slots are free. A row in place is one cell, an object another."""

    dims: Dims
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    """How often each slot was taken into use."""
    free: list[int] = field(default_factory=list)
    count: int = 0

    def acquire(self, busy: Callable[[int], bool]) -> int:
        for slot in reversed(self.free):
            if not busy(slot):
                self.free.remove(slot)
                break
        else:
            slot, self.count = self.count, self.count + 1
        assert self.count <= self.dims.slots
        self.uses[slot] = self.uses.get(slot, 0) + 1
        return slot

    def release(self, slot: int) -> None:
        assert slot not in self.free
        self.free.append(slot)

    def reclaim(self, held: set[int]) -> None:
        self.free = [slot for slot in range(self.count) if slot not in held]

    def write(self, slot: int, use: int, cell: int, value: Any) -> None:
        """``use`` is the one the writer knows; writing to another one's batch would spoil it."""
        assert self.uses[slot] == use, "a worker writes to a slot that was given to another batch"
        self.cells[slot, cell] = value


def pending(words: Words, dims: Dims, groups: list[int]) -> int:
    """Tickets neither done nor failed."""
    found = 0
    for group in groups:
        first, count = dims.ticket(group), words[dims.group(group) + W.G_COUNT]
        found += sum(word & 15 == W.PENDING for word in words[first : first + count])
    return found
