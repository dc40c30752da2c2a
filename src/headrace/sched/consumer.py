"""What the consumer does with the ledger: publish work, see what is ready, put right what the dead left behind.

The caller brings the lock: hot methods take it, the others want it held.
"""

from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.sched import words as W
from headrace.sched.words import Dims, Words


@dataclass(frozen=True, slots=True)
class Repair:
    """What was put right after a lane died."""

    ticket: tuple[int, int] | None
    """(group, position) the lane was working on."""
    deaths: int
    """How often that sample has now taken a worker with it."""
    collating: int
    """The slot it was collating, or -1."""
    reissued: int
    """Tickets that will be run again."""


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
    kind: int
    """How its indices are written."""
    blob: int
    """Bytes that its blob begins with."""
    free_order: bool
    """Rows are claimed by those who finish; else they are assigned now."""


@lru_cache(maxsize=64)
def _zeros(count: int) -> "array[int]":
    return array("q", bytes(8 * count))


class ConsumerLedger:
    """The consumer's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        self.w, self.dims, self.lock = words, dims, nullcontext() if lock is None else lock
        self.epoch = 0  # what is opened and published belongs to it

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
            return self.rouse(lanes)

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

    def is_ready(self, slot: int) -> bool:
        """Whether the slot's batch can be taken."""
        return self.w[self.dims.slot(slot) + W.S_STATUS] == W.READY

    def rouse(self, lanes: int) -> list[int]:
        """The lanes that sleep and have a place; they count as awake from now on, so each must be woken."""
        w, found = self.w, []
        places = w[W.LIMIT] - w[W.FOREGROUND]
        for lane in range(lanes):
            at = self.dims.lane(lane)
            if not w[at + W.L_WAITING]:
                continue
            if w[at + W.L_WAITING] == W.FOR_WORK and w[at + W.L_ROLE] != W.WORKING:
                if places <= 0:
                    continue
                places -= 1
            w[at + W.L_WAITING] = 0
            found.append(lane)
        return found

    def put_aside(self, lanes: int, now: int, threshold: int, most: int) -> int | None:
        """Hand the places of lanes whose sample takes longer than ``threshold`` to others, ``most`` of them at most.

        The sample stays where it is: the lane finishes it and is then parked, or takes a place that is free. Returns
        when to look again: the next moment at which a sample can become slow, None while all lanes sleep or are aside.
        """
        w = self.w
        aside, soonest = self.aside(lanes), None
        for at in map(self.dims.lane, range(lanes)):
            if w[at + W.L_WAITING] or w[at + W.L_ROLE] == W.ASIDE:
                continue
            making = w[at + W.L_ROLE] == W.WORKING and w[at + W.L_GROUP] and w[at + W.L_POS] < w[at + W.L_END]
            # One that is between two samples, or starting, begins its next one now at the earliest.
            due = (w[at + W.L_BEGAN] if making and w[at + W.L_BEGAN] else now) + threshold
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

    def aside(self, lanes: int) -> int:
        """How many lanes are aside."""
        return sum(self.w[self.dims.lane(lane) + W.L_ROLE] == W.ASIDE for lane in range(lanes))

    def count_lanes(self, lanes: int) -> None:
        """Recount what is derived from the lanes' roles."""
        self.w[W.FOREGROUND] = sum(self.w[self.dims.lane(lane) + W.L_ROLE] == W.WORKING for lane in range(lanes))

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

    def _complete(self, slot: int) -> None:
        w, at = self.w, self.dims.slot(slot)
        if w[at + W.S_COLLATE]:
            w[at + W.S_STATUS] = W.COLLATING
            self._push(W.RETRIES, self.dims.retry, -(slot + 1))
        else:
            w[at + W.S_STATUS] = W.READY

    def _push(self, count: int, base: int, item: int) -> None:
        self.w[base + self.w[count]] = item
        self.w[count] += 1

    def bury(self, lane: int) -> tuple[tuple[int, int] | None, int]:
        """Take a dead lane's claims away: the ticket it was on (None if it held none), the slot it collated or -1."""
        w, at = self.w, self.dims.lane(lane)
        current = w[at + W.L_GENERATION] == w[W.GENERATION]
        working = self._holds(at) and w[at + W.L_POS] < w[at + W.L_END]
        ticket = (w[at + W.L_GROUP] - 1, w[at + W.L_POS]) if working else None
        collating = w[at + W.L_COLLATE] - 1 if current else -1
        if current:
            self._count_made(at)
        for word in (W.L_GROUP, W.L_SLOT, W.L_COLLATE, W.L_WAITING, W.L_ROLE):
            w[at + word] = 0
        return ticket, collating

    def _holds(self, lane: int) -> bool:
        """Whether a lane's claim on tickets is one of this epoch, on the group that has this number now."""
        w = self.w
        if not w[lane + W.L_GROUP] or w[lane + W.L_GENERATION] != w[W.GENERATION]:
            return False
        return bool(w[lane + W.L_SERIAL] == w[self.dims.group(w[lane + W.L_GROUP] - 1) + W.G_SERIAL])

    def _count_made(self, lane: int) -> None:
        """Streams: a batch that became ready counts as made, although the lane died before it counted it."""
        w, made = self.w, self.w[lane + W.L_MADE]
        slot = w[lane + W.LANE + made % W.STREAM_RING]
        if made < w[lane + W.L_QUOTA] and w[lane + W.L_SLOT] == slot + 1 and self.is_ready(slot):
            w[lane + W.L_MADE] = made + 1

    def repair(self, dead: int, lanes: int, groups: list[int], slots: list[int]) -> Repair:
        """Make the ledger whole after lane ``dead`` died: ``groups`` and ``slots`` are all that are in use.

        Whatever is neither done, nor queued, nor held by a living lane is queued again. Nothing is guessed: the lock is
        held, so no living lane is between two stores.
        """
        ticket, collating = self.bury(dead)
        self.count_lanes(lanes)
        deaths = 0
        if ticket is not None:
            deaths = self._blame(*ticket)
        if collating >= 0:
            deaths = self._blame_collation(collating, groups)
        for slot in slots:
            self._repair_slot(slot, lanes)
        reissued = self._reissue(lanes, groups)
        for slot in slots:
            self._repair_status(slot, lanes)
        return Repair(ticket, deaths, collating, reissued)

    def _blame(self, group: int, position: int) -> int:
        """Count a death against a ticket; a ticket that did it too often has failed."""
        w, at = self.w, self.dims.ticket(group) + position
        if w[at] & 15 != W.PENDING:
            return 0
        w[at] += 1 << 4
        deaths = w[at] >> 4 & 7
        if deaths > W.DEATHS_ALLOWED:
            slot = w[self.dims.group(group) + W.G_SLOT] - 1
            if slot >= 0:
                w[self.dims.row_ticket(slot) + position] = (group << 32 | position) + 1
                w[self.dims.row_state(slot) + position] = W.ABSENT
            w[at] = W.FAILED | deaths << 4 | W.NO_BLOB << 8
            w[W.FAILURES] += 1
        return deaths

    def _blame_collation(self, slot: int, groups: list[int]) -> int:
        """Count a death against a batch's collation; a batch that did it too often has failed, with its samples."""
        w, at = self.w, self.dims.slot(slot)
        w[at + W.S_DEATHS] += 1
        if w[at + W.S_DEATHS] > W.DEATHS_ALLOWED and w[at + W.S_STATUS] in (W.FILLING, W.COLLATING):
            for group in groups:
                if w[self.dims.group(group) + W.G_SLOT] == slot + 1:  # made by one lane: its tickets are still pending
                    tickets = self.dims.ticket(group)
                    for ticket in range(tickets, tickets + w[self.dims.group(group) + W.G_COUNT]):
                        if w[ticket] & 15 == W.PENDING:
                            w[ticket] |= W.DONE
            w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = 0, 1
            w[at + W.S_STATUS] = W.READY
        return w[at + W.S_DEATHS]

    def _repair_slot(self, slot: int, lanes: int) -> None:
        """Rows are the facts; ticket states and counts follow from them."""
        w, dims, at = self.w, self.dims, self.dims.slot(slot)
        if w[at + W.S_STATUS] in (W.FILLING, W.COLLATING):
            self._undo_whole(slot)
        if w[at + W.S_STATUS] != W.FILLING:
            return
        held = {
            row
            for lane in map(dims.lane, range(lanes))
            if w[lane + W.L_SLOT] == slot + 1 and w[lane + W.L_GENERATION] == w[W.GENERATION]
            for row in range(w[lane + W.L_ROW], w[lane + W.L_ROW] + w[lane + W.L_ROWS])
        }
        holes = {w[dims.hole + i] for i in range(w[W.HOLES])}
        states, tickets, resolved = dims.row_state(slot), dims.row_ticket(slot), 0
        for row in range(w[at + W.S_EXPECTED]):
            state = w[states + row] & 255
            if state == W.EMPTY:
                claimed = w[W.FREE_ORDER] and row < w[at + W.S_CLAIMED]
                if claimed and row not in held and slot << 32 | row not in holes:
                    self._push(W.HOLES, dims.hole, slot << 32 | row)
                continue
            resolved += 1
            ticket = w[tickets + row] - 1
            word = dims.ticket(ticket >> 32) + (ticket & 0xFFFFFFFF)
            if w[word] & 15 == W.PENDING and state == W.ABSENT:
                w[states + row] = W.EMPTY  # it failed, but its error was not filed: run it again
                resolved -= 1
            elif w[word] & 15 == W.PENDING:
                w[word] |= W.DONE
            if state == W.AS_OBJECT:
                w[at + W.S_COLLATE] = 1
        w[at + W.S_DONE] = resolved
        if w[W.FREE_ORDER] and w[at + W.S_CLAIMED] == w[at + W.S_EXPECTED]:
            fill = w[W.FILL_CURSOR]
            if fill < w[W.FILL_TAIL] and w[dims.fill + fill % dims.ring] == slot:
                w[W.FILL_CURSOR] = fill + 1

    def _undo_whole(self, slot: int) -> None:
        """A batch made whole whose result was not filed: its samples are nowhere and must be made again."""
        w, states, tickets = self.w, self.dims.row_state(slot), self.dims.row_ticket(slot)
        for row in range(w[self.dims.slot(slot) + W.S_EXPECTED]):
            if w[states + row] == W.AS_OBJECT | W.WHOLE << 8:
                ticket = w[tickets + row] - 1
                w[self.dims.ticket(ticket >> 32) + (ticket & 0xFFFFFFFF)] &= ~15
                w[states + row] = W.EMPTY
                w[self.dims.slot(slot) + W.S_STATUS] = W.FILLING

    def _repair_status(self, slot: int, lanes: int) -> None:
        """A complete slot whose last finisher died is completed here; one whose collator died is queued again."""
        w, dims, at = self.w, self.dims, self.dims.slot(slot)
        status = w[at + W.S_STATUS]
        if status == W.FILLING and w[at + W.S_DONE] == w[at + W.S_EXPECTED]:
            self._complete(slot)
        elif status == W.COLLATING:
            collated = {w[dims.lane(lane) + W.L_COLLATE] - 1 for lane in range(lanes)}
            queued = {w[dims.retry + i] for i in range(w[W.RETRIES])}
            if slot not in collated and -(slot + 1) not in queued:
                self._push(W.RETRIES, dims.retry, -(slot + 1))

    def _reissue(self, lanes: int, groups: list[int]) -> int:
        """Queue every pending ticket that was taken and that nobody holds; recount what is unresolved."""
        w, dims = self.w, self.dims
        sequence, next_position = w[W.CURSOR] >> 24, w[W.CURSOR] & 0xFFFFFF
        ahead: dict[int, int] = {}  # groups not handed out wholly yet -> the first position that was not
        for number in range(sequence, w[W.TAIL]):
            group = w[dims.order + number % dims.ring]
            if w[dims.group(group) + W.G_SERIAL] & 0xFFFFFFFF == number:
                ahead[group] = next_position if number == sequence else 0
        queued = {w[dims.retry + i] for i in range(w[W.RETRIES])}
        held = {
            (w[at + W.L_GROUP] - 1) << 32 | position
            for at in map(dims.lane, range(lanes))
            if self._holds(at)
            for position in range(w[at + W.L_START], w[at + W.L_END])
        }
        rows_held = [
            (w[at + W.L_GROUP] - 1, w[at + W.L_ROWS])
            for at in map(dims.lane, range(lanes))
            if w[at + W.L_SLOT] and self._holds(at)
        ]
        reissued, unresolved = 0, {w[W.EPOCH]: 0}
        w[W.OLDEST] = min((w[dims.group(group) + W.G_SERIAL] & 0xFFFFFFFF for group in groups), default=w[W.TAIL])
        for group in groups:
            tickets, count = dims.ticket(group), w[dims.group(group) + W.G_COUNT]
            pending = sum(w[tickets + position] & 15 == W.PENDING for position in range(count))
            held_rows = sum(rows for holder, rows in rows_held if holder == group)
            w[dims.group(group) + W.G_UNCLAIMED] = max(0, pending - held_rows)
            for position in range(count):
                if w[tickets + position] & 15 != W.PENDING:
                    continue
                epoch = w[dims.group(group) + W.G_EPOCH]
                unresolved[epoch] = unresolved.get(epoch, 0) + 1
                key = group << 32 | position
                taken = position < ahead.get(group, count) or w[tickets + position] & W.AHEAD
                if taken and key not in queued and key not in held:
                    self._push(W.RETRIES, dims.retry, key)
                    reissued += 1
        w[W.UNRESOLVED] = unresolved.pop(w[W.EPOCH])
        w[W.UNRESOLVED_NEXT] = sum(unresolved.values())
        return reissued
