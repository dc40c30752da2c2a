"""How a batch gets into the ledger: its slot is opened, its tickets are queued, lanes are woken for them."""

from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntFlag
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.sched import encoding as E
from headrace.sched import words as W
from headrace.sched.oversight import Oversight
from headrace.sched.words import Dims, Words


class IndexKind(IntFlag):
    """How the indices of a group are written."""

    INTEGERS = W.INTEGERS
    """As words."""
    PICKLED = W.PICKLED
    """In its blob."""
    PLANNED = W.PLANNED
    """Added: behind them, its blob says where what is needed for each sample lies."""


class Batch(NamedTuple):
    """A batch to be made: its slot, and the group of tickets that were drawn with it."""

    slot: int
    expected: int
    """Rows of the slot."""
    collate: bool
    """A worker must."""
    group: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    """Tickets of the group."""
    kind: IndexKind
    """How its indices are written."""
    blob: int
    """Bytes that its blob begins with."""
    free_order: bool
    """Rows are claimed by those who finish; else they are assigned now."""


@lru_cache(maxsize=64)
def _zeros(count: int) -> "array[int]":
    return array("q", bytes(8 * count))


class Publication(Oversight):
    """The consumer's, of one batch after the other."""

    def __init__(self, words: Words, dims: Dims, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        super().__init__(words, dims)
        self.lock = nullcontext() if lock is None else lock
        self.epoch = 0  # what is opened and published belongs to it

    def write_indices(self, group: int, indices: "array[int]") -> None:
        """Those of a group that is not published yet."""
        first = self.dims.index(group)
        self.w[first : first + len(indices)] = memoryview(indices)

    def publish(self, batch: Batch, lanes: int, ahead: Sequence[int] = (), *, relaxed: bool = False) -> list[int]:
        """Hand out a batch whose indices (and the bytes of its blob) were written; the lanes to wake. Takes the lock.

        ``ahead``: positions to be made before everything that waits. ``relaxed``: there is time, so no more lanes than
        groups wait are woken.
        """
        self.dims.check_slot(batch.slot)
        self.dims.check_group(batch.group)
        self.dims.check_span("rows", 0, batch.expected)
        self.dims.check_span("tickets", 0, batch.count)
        self.dims.check_lanes(lanes)
        for position in ahead:
            W.check("position", position, batch.count)
        with self.lock:
            self._open(batch.slot, batch.expected, collate=batch.collate)
            self._publish(batch, ahead)
            if batch.free_order:
                self._offer(batch.slot)
            return self.rouse(lanes, self._worth_waking(batch.count, lanes, relaxed=relaxed))

    def publish_empty(self, slot: int, group: int, lanes: int) -> list[int]:
        """A batch of no samples: nothing to make, only to collate; the lanes to wake. Takes the lock."""
        with self.lock:
            self._open(slot, 0, collate=True)
            self.w[self.dims.group(group) + W.G_COUNT] = 0
            self._complete(slot)
            return self.rouse(lanes)

    def _open(self, slot: int, expected: int, *, collate: bool) -> None:
        """Prepare a slot to take ``expected`` rows."""
        w, at = self.w, self.dims.slot(slot)
        if w[W.HOLES]:
            self._forget_holes(slot)
        w[at : at + W.SLOT] = _zeros(W.SLOT)
        states = self.dims.row_state(slot)
        w[states : states + expected] = _zeros(expected)  # EMPTY
        w[at + W.S_EXPECTED], w[at + W.S_COLLATE], w[at + W.S_EPOCH] = expected, int(collate), self.epoch
        w[at + W.S_BATCH] = w[W.BATCHES]
        w[W.BATCHES] += 1
        w[at + W.S_STATUS] = W.FILLING

    def _forget_holes(self, slot: int) -> None:
        """A batch closed at the end of an epoch may have left some behind."""
        w, first = self.w, self.dims.hole
        kept = [hole for hole in w[first : first + w[W.HOLES]].tolist() if E.parts(hole)[0] != slot]
        w[first : first + len(kept)] = array("q", kept)
        w[W.HOLES] = len(kept)

    def _publish(self, batch: Batch, ahead: Sequence[int]) -> None:
        w, at, tickets = self.w, self.dims.group(batch.group), self.dims.ticket(batch.group)
        count, slot = batch.count, 0 if batch.free_order else E.some(batch.slot)
        w[tickets : tickets + count] = _zeros(count)  # PENDING
        w[at + W.G_COUNT], w[at + W.G_SLOT], w[at + W.G_KIND], w[at + W.G_BLOB] = count, slot, batch.kind, batch.blob
        w[at + W.G_UNCLAIMED], w[at + W.G_EPOCH], w[at + W.G_AHEAD] = count, self.epoch, int(bool(ahead))
        for position in ahead:
            w[tickets + position] = W.AHEAD
            self._push(W.RETRIES, self.dims.retry, E.pair(batch.group, position))
        w[at + W.G_SERIAL] = E.pair(w[W.GENERATION], w[W.TAIL])
        w[self.dims.order + w[W.TAIL] % self.dims.ring] = batch.group
        w[W.UNRESOLVED if self.epoch == w[W.EPOCH] else W.UNRESOLVED_NEXT] += count
        w[W.TAIL] += 1

    def _offer(self, slot: int) -> None:
        """Free order: a slot for the next finishers."""
        self.w[self.dims.slot(slot) + W.S_NUMBER] = self.w[W.FILL_TAIL]
        self.w[self.dims.fill + self.w[W.FILL_TAIL] % self.dims.ring] = slot
        self.w[W.FILL_TAIL] += 1

    def _worth_waking(self, count: int, lanes: int, *, relaxed: bool) -> int:
        """Lanes worth waking for all that waits to be taken, groups of ``count``; some are awake and come for it."""
        w = self.w
        each = 1 if relaxed else -(-count // max(1, w[W.WORTH_WAKING]))
        found = (w[W.TAIL] - E.at_cursor(w[W.CURSOR])[0]) * each + w[W.RETRIES]
        for at in map(self.dims.lane, range(lanes)):
            busy = w[at + W.L_WAITING] or w[at + W.L_GROUP] or w[at + W.L_COLLATE]
            found -= not busy and w[at + W.L_ROLE] == W.WORKING
        return found
