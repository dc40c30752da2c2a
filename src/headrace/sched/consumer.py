"""What the consumer does with the ledger: publish work, see what is ready, put right what the dead left behind.

The caller brings the lock: hot methods take it, the others want it held.
"""

from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntFlag
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.sched import words as W
from headrace.sched.repair import Mending
from headrace.sched.words import Dims, Words


class Kind(IntFlag):
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
    kind: Kind
    """How its indices are written."""
    blob: int
    """Bytes that its blob begins with."""
    free_order: bool
    """Rows are claimed by those who finish; else they are assigned now."""


@lru_cache(maxsize=64)
def _zeros(count: int) -> "array[int]":
    return array("q", bytes(8 * count))


class ConsumerLedger(Mending):
    """The consumer's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        super().__init__(words, dims)
        self.lock = nullcontext() if lock is None else lock
        self.epoch = 0  # what is opened and published belongs to it

    @property
    def limit(self) -> int:
        """Lanes that may take tickets at once."""
        return self.w[W.LIMIT]

    @property
    def failures(self) -> int:
        """Tickets that failed in this generation, or a few more."""
        return self.w[W.FAILURES]

    @property
    def logged(self) -> int:
        """Samples of extraordinary cost so far."""
        return self.w[W.LOGGED]

    @property
    def queued(self) -> int:
        """Tickets that wait to be made before all others."""
        return self.w[W.RETRIES]

    @property
    def is_taken(self) -> bool:
        """Whether no ticket waits to be taken. Without the lock: a hint."""
        return not self.w[W.RETRIES] and self.w[W.CURSOR] >> 24 >= self.w[W.TAIL]

    @property
    def is_resolved(self) -> bool:
        """Whether every ticket of the epoch being delivered is done or failed."""
        return self.w[W.UNRESOLVED] == 0

    @property
    def is_local(self) -> bool:
        """Whether each batch is made by one worker."""
        return bool(self.w[W.LOCAL])

    def stay_local(self) -> None:
        """Samples cannot travel between workers. Follows a ``reset``."""
        self.w[W.LOCAL] = 1

    def seed(self, seed: int) -> None:
        """What, with the epoch and the index, a sample's random numbers come from."""
        self.w[W.SEED] = seed

    def write_indices(self, group: int, indices: "array[int]") -> None:
        """Those of a group that is not published yet."""
        first = self.dims.index(group)
        self.w[first : first + len(indices)] = memoryview(indices)

    def making(self, lane: int) -> tuple[int, int]:
        """The group (-1: none) and the position that a lane is at; a hint."""
        at = self.dims.lane(lane)
        return self.w[at + W.L_GROUP] - 1, self.w[at + W.L_POS]

    def reset(self, *, free_order: bool, limit: int = 1 << 30, displacement: int = 0, epoch: int = 0) -> None:
        """Begin a new epoch; whatever lanes still do for an older one will be dropped when they come back with it.

        ``limit``: lanes that may take tickets at once. ``displacement``: batches by which a sample may be overtaken.
        """
        w = self.w
        w[W.LIMIT], w[W.DISPLACEMENT], w[W.OLDEST] = limit, displacement, 0
        w[W.GENERATION] += 1
        w[W.EPOCH] = self.epoch = epoch
        w[W.NEXT_BASE], w[W.UNRESOLVED_NEXT] = W.NEVER, 0
        w[W.FREE_ORDER] = int(free_order)
        for word in (W.TAIL, W.CURSOR, W.FILL_TAIL, W.FILL_CURSOR, W.RETRIES, W.HOLES):
            w[word] = 0
        for word in (W.UNRESOLVED, W.AWAITED, W.FAILURES, W.LOCAL):
            w[word] = 0

    def follow(self, epoch: int) -> None:
        """What is published from now on (by this ledger) is of the next epoch, while this one is still delivered."""
        self.epoch = epoch
        self.w[W.NEXT_BASE] = self.w[W.TAIL]

    def advance(self, groups: Iterable[int]) -> None:
        """Deliver the epoch begun with ``follow``: all of the one before it was delivered. ``groups``: its own."""
        w = self.w
        w[W.EPOCH] = self.epoch
        w[W.FILL_CURSOR], w[W.OLDEST] = max(w[W.FILL_CURSOR], w[W.NEXT_BASE]), max(w[W.OLDEST], w[W.NEXT_BASE])
        w[W.UNRESOLVED], w[W.UNRESOLVED_NEXT], w[W.NEXT_BASE] = w[W.UNRESOLVED_NEXT], 0, W.NEVER
        w[W.FAILURES] = len(self.failed(groups))

    def publish(self, batch: Batch, lanes: int, ahead: Sequence[int] = ()) -> list[int]:
        """Hand out a batch whose indices (and the bytes of its blob) were written; the lanes to wake. Takes the lock.

        ``ahead``: positions to be made before everything that waits.
        """
        with self.lock:
            self._open(batch.slot, batch.expected, collate=batch.collate)
            self._publish(batch, ahead)
            if batch.free_order:
                self._offer(batch.slot)
            return self.rouse(lanes, self._mouths(batch.count, lanes))

    def publish_empty(self, slot: int, group: int, lanes: int) -> list[int]:
        """A batch of no samples: nothing to make, only to collate; the lanes to wake. Takes the lock."""
        with self.lock:
            self._open(slot, 0, collate=True)
            self.w[self.dims.group(group) + W.G_COUNT] = 0
            self._complete(slot)
            return self.rouse(lanes)

    def look(self, slots: Sequence[int]) -> int | None:
        """The first slot that is ready; None once lanes know that the consumer waits for these. Takes the lock."""
        with self.lock:
            for slot in slots:
                if self.is_ready(slot):
                    return slot
            self.w[W.AWAITED] = slots[0] + 1 if len(slots) == 1 else W.ANY
            return None

    def wake(self, lanes: int) -> list[int]:
        """The lanes that sleep and have a place: see ``rouse``. Takes the lock."""
        with self.lock:
            return self.rouse(lanes)

    def is_busy(self, slot: int, lanes: int) -> bool:
        """Whether a lane may be writing to a free slot, for whatever epoch. Without the lock: none begins to."""
        w, lane = self.w, self.dims.lane
        return any(slot + 1 in (w[lane(n) + W.L_SLOT], w[lane(n) + W.L_COLLATE]) for n in range(lanes))

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
        kept = [hole for hole in w[first : first + w[W.HOLES]].tolist() if hole >> 32 != slot]
        w[first : first + len(kept)] = array("q", kept)
        w[W.HOLES] = len(kept)

    def _publish(self, batch: Batch, ahead: Sequence[int]) -> None:
        w, at, tickets = self.w, self.dims.group(batch.group), self.dims.ticket(batch.group)
        count, slot = batch.count, 0 if batch.free_order else batch.slot + 1
        w[tickets : tickets + count] = _zeros(count)  # PENDING
        w[at + W.G_COUNT], w[at + W.G_SLOT], w[at + W.G_KIND], w[at + W.G_BLOB] = count, slot, batch.kind, batch.blob
        w[at + W.G_UNCLAIMED], w[at + W.G_EPOCH], w[at + W.G_AHEAD] = count, self.epoch, int(bool(ahead))
        for position in ahead:
            w[tickets + position] = W.AHEAD
            self._push(W.RETRIES, self.dims.retry, batch.group << 32 | position)
        w[at + W.G_SERIAL] = w[W.GENERATION] << 32 | w[W.TAIL]
        w[self.dims.order + w[W.TAIL] % self.dims.ring] = batch.group
        w[W.UNRESOLVED if self.epoch == w[W.EPOCH] else W.UNRESOLVED_NEXT] += count
        w[W.TAIL] += 1

    def _offer(self, slot: int) -> None:
        """Free order: a slot for the next finishers."""
        self.w[self.dims.slot(slot) + W.S_NUMBER] = self.w[W.FILL_TAIL]
        self.w[self.dims.fill + self.w[W.FILL_TAIL] % self.dims.ring] = slot
        self.w[W.FILL_TAIL] += 1

    def _mouths(self, count: int, lanes: int) -> int:
        """Lanes worth waking for all that waits to be taken, groups of ``count``; some are awake and come for it."""
        w = self.w
        found = (w[W.TAIL] - (w[W.CURSOR] >> 24)) * -(-count // max(1, w[W.BITE])) + w[W.RETRIES]
        for at in map(self.dims.lane, range(lanes)):
            busy = w[at + W.L_WAITING] or w[at + W.L_GROUP] or w[at + W.L_COLLATE]
            found -= not busy and w[at + W.L_ROLE] == W.WORKING
        return found

    def stragglers(self, since: int) -> tuple[int, list[int]]:
        """How many samples of extraordinary cost were logged, and the indices of those after the first ``since``."""
        w = self.w
        first = max(since, w[W.LOGGED] - W.LOG_SIZE)
        return w[W.LOGGED], [w[W.LOG + number % W.LOG_SIZE] for number in range(first, w[W.LOGGED])]

    def present(self, slot: int) -> list[int]:
        """Rows of a complete slot that hold a sample."""
        w, first, at = self.w, self.dims.row_state(slot), self.dims.slot(slot)
        expected = w[at + W.S_EXPECTED]
        if w[at + W.S_DONE] == expected and not w[W.FAILURES]:
            return list(range(expected))
        states = w[first : first + expected].tolist()
        return [row for row, state in enumerate(states) if state & 255 in (W.IN_PLACE, W.AS_OBJECT)]

    def tickets(self, slot: int) -> list[int]:
        """Of each of a slot's rows that holds a sample, its ticket: group << 32 | position."""
        first = self.dims.row_ticket(slot)
        rows = self.w[first : first + self.w[self.dims.slot(slot) + W.S_EXPECTED]]
        return [ticket - 1 for ticket in rows.tolist()]

    def rouse(self, lanes: int, most: int = W.NEVER) -> list[int]:
        """The lanes that sleep and have a place; they count as awake from now on, so each must be woken.

        For work, ``most`` of them; all where some will lose their place when they come for it.
        """
        w, found = self.w, []
        places = w[W.LIMIT] - w[W.FOREGROUND]
        if places < 0:
            most = lanes
        for lane in range(lanes):
            at = self.dims.lane(lane)
            if not w[at + W.L_WAITING]:
                continue
            if w[at + W.L_WAITING] == W.FOR_WORK:
                if most <= 0:
                    continue
                if w[at + W.L_ROLE] != W.WORKING:
                    if places <= 0:
                        continue
                    places -= 1
                most -= 1
            w[at + W.L_WAITING] = 0
            found.append(lane)
        return found

    def becomes_slow(self, lanes: int, now: int, threshold: int, *, before_others: bool = False) -> int | None:
        """When the first sample under way will have taken ``threshold``; None while all lanes sleep or are aside.

        ``before_others``: only those that their lanes took with others, which wait. Without the lock: a hint.
        """
        soonest = None
        for lane in range(lanes):
            due = self._slow_from(lane, now, threshold)
            if before_others and not self._has_rest(lane):
                continue
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    def _slow_from(self, lane: int, now: int, threshold: int) -> int | None:
        w, at = self.w, self.dims.lane(lane)
        if w[at + W.L_WAITING] or w[at + W.L_ROLE] == W.ASIDE:
            return None
        making = w[at + W.L_ROLE] == W.WORKING and w[at + W.L_GROUP] and w[at + W.L_POS] < w[at + W.L_END]
        # One that is between two samples, or starting, begins its next one now at the earliest.
        return (w[at + W.L_BEGAN] if making and w[at + W.L_BEGAN] else now) + threshold

    def _has_rest(self, lane: int) -> bool:
        w, at = self.w, self.dims.lane(lane)
        return w[at + W.L_POS] + 1 < w[at + W.L_END] and not w[at + W.L_WHOLE] and not w[W.LOCAL]

    def relieve(self, lanes: int, now: int, threshold: int) -> tuple[int, int | None]:
        """Take the rest of their tickets from lanes whose sample takes longer than ``threshold``, for others to make.

        How many they were, and when to look again: as ``put_aside``, of lanes that have a rest. ``threshold``: what a
        lane waits for before it ends a chunk without asking (``CUT_NS``), or longer.
        """
        w, taken, soonest = self.w, 0, None
        for lane in range(lanes):
            at, due = self.dims.lane(lane), self._slow_from(lane, now, threshold)
            if due is None or not self._has_rest(lane) or not self._holds(at):
                continue
            if due > now:
                soonest = due if soonest is None else min(soonest, due)
                continue
            group, first, end = w[at + W.L_GROUP] - 1, w[at + W.L_POS] + 1, w[at + W.L_END]
            w[at + W.L_END] = first
            if w[at + W.L_SLOT]:
                w[at + W.L_ROWS] = first - w[at + W.L_ROW]
            for position in range(end - 1, first - 1, -1):
                self._push(W.RETRIES, self.dims.retry, group << 32 | position)
            taken += end - first
        return taken, soonest

    def put_aside(self, lanes: int, now: int, threshold: int, most: int) -> int | None:
        """Hand the places of lanes whose sample takes longer than ``threshold`` to others, ``most`` of them at most.

        The sample stays where it is: the lane finishes it and is then parked, or takes a place that is free. Returns
        when to look again: the next moment at which a sample can become slow, None while all lanes sleep or are aside.
        """
        w = self.w
        aside, soonest = self.aside(lanes), None
        for lane in range(lanes):
            at, due = self.dims.lane(lane), self._slow_from(lane, now, threshold)
            if due is None:
                continue
            if due <= now and aside < most:
                w[W.BAR] = threshold
                w[at + W.L_ROLE] = W.ASIDE
                w[W.FOREGROUND] -= 1
                w[W.HANDOFFS] += 1
                w[W.ASIDE_AT + w[at + W.L_OPERATION]] += 1
                aside += 1
            else:
                due = due if due > now else now + threshold  # too many are aside; one may come back meanwhile
                soonest = due if soonest is None else min(soonest, due)
        return soonest

    def idle(self, lanes: int) -> int:
        """How many lanes have a place and found no ticket to take. Without the lock: a hint."""
        w, asleep = self.w, 0
        for at in map(self.dims.lane, range(lanes)):
            asleep += w[at + W.L_WAITING] == W.FOR_WORK and w[at + W.L_ROLE] == W.WORKING
        return asleep

    def aside(self, lanes: int) -> int:
        """How many lanes are aside."""
        return sum(self.w[self.dims.lane(lane) + W.L_ROLE] == W.ASIDE for lane in range(lanes))

    def failed(self, groups: Iterable[int]) -> list[tuple[int, int, int]]:
        """(group, position, blob offset) of the tickets that failed, in the order given."""
        w, found = self.w, []
        for group in groups:
            tickets = self.dims.ticket(group)
            for position in range(w[self.dims.group(group) + W.G_COUNT]):
                word = w[tickets + position]
                if word & 15 == W.FAILED:
                    found.append((group, position, word >> 8))
        return found

    def close(self, slot: int) -> bool:
        """No more rows will come: the slot is complete as it is. False when it is empty."""
        w, at = self.w, self.dims.slot(slot)
        if w[at + W.S_DONE] == 0:
            w[at + W.S_STATUS] = W.IDLE
            return False
        if w[at + W.S_STATUS] == W.FILLING:
            self._complete(slot)
        return True
