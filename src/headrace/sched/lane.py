"""What a worker does with the ledger. Every method is one short critical section: the caller holds the lock.

A worker may be killed between any two stores, and the others may go on for a while before the consumer notices. Then
it recomputes everything derived from the primary facts: ticket states, row states, what living lanes hold. Whatever is
taken and held by nobody is queued again, so a ticket is first taken and then held: no two lanes ever hold the same one.
Until the repair, counts may only err on the safe side: UNRESOLVED goes down last, FAILURES up first.
"""

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from headrace.sched import words as W
from headrace.sched.words import Dims, Words

Room = Callable[[int], int]
"""Bytes that the rows of a slot take, from their number."""


class Tickets(NamedTuple):
    """Positions ``start`` to ``end`` of a group to be made; ``slot`` is -1 when rows are claimed on completion."""

    group: int
    start: int
    end: int
    slot: int


class Rows(NamedTuple):
    """``count`` rows of a slot from ``first`` on, and the slot's layout (whoever came first decided it)."""

    slot: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    layout: int


class Outcome(NamedTuple):
    """What follows from a finished step: a slot to collate (or -1), and whether the consumer must be woken."""

    collate: int
    wake: bool


@lru_cache(maxsize=64)
def _filled(value: int, count: int) -> "array[int]":
    return array("q", [value]) * count


class LaneLedger:
    """One worker's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lane: int) -> None:
        """``words`` is shared; nothing is written until a method is called."""
        self.w = words
        self.lane = dims.lane(lane)
        self._ring, self._order, self._fill = dims.ring, dims.order, dims.fill
        self._retry, self._hole = dims.retry, dims.hole
        self._group0, self._group_stride, self._ticket0 = dims.group0, dims.group_stride, dims.ticket0
        self._index0 = dims.index0
        self._slot0, self._slot_stride = dims.slot0, dims.slot_stride
        self._row_ticket0, self._row_state0 = dims.row_ticket0, dims.row_state0

    def take(self, want: int) -> Tickets | int | None:
        """Up to ``want`` tickets; or a slot to collate (an int); or None when there is nothing to do now."""
        w, lane = self.w, self.lane
        w[lane + W.L_GENERATION] = w[W.GENERATION]
        if not self._works():
            return None
        retries = w[W.RETRIES]
        if retries:
            item = w[self._retry + retries - 1]
            if item < 0:
                w[W.RETRIES] = retries - 1
                w[lane + W.L_COLLATE] = -item
                return -item - 1
            group, start, end = item >> 32, item & 0xFFFFFFFF, (item & 0xFFFFFFFF) + 1
            w[W.RETRIES] = retries - 1
            self._hold(group, start, end)
        else:
            group, start, end = self._in_turn(want)
            if group < 0:
                return None
            self._hold(group, start, end)
        slot = w[self._group0 + group * self._group_stride + W.G_SLOT] - 1
        if slot >= 0:
            w[lane + W.L_ROW], w[lane + W.L_ROWS] = start, end - start
            w[lane + W.L_SLOT] = slot + 1
        return Tickets(group, start, end, slot)

    def _in_turn(self, want: int) -> tuple[int, int, int]:
        """The next tickets in the order drawn, taken off the queue: group (-1: none), start, end."""
        w = self.w
        sequence, start = w[W.CURSOR] >> 24, w[W.CURSOR] & 0xFFFFFF
        while sequence < w[W.TAIL]:
            group = w[self._order + sequence % self._ring]
            at = self._group0 + group * self._group_stride
            if w[at + W.G_SERIAL] & 0xFFFFFFFF != sequence:  # all of it was ahead, and its number is in use again
                sequence, start = sequence + 1, 0
                continue
            count, tickets = w[at + W.G_COUNT], self._ticket0 + group * self._group_stride
            end = min(count, start + want)
            if w[at + W.G_AHEAD]:
                while start < count and w[tickets + start] & W.AHEAD:
                    start += 1
                end = start
                while end < min(count, start + want) and not w[tickets + end] & W.AHEAD:
                    end += 1
            w[W.CURSOR] = (sequence + 1) << 24 if end == count else sequence << 24 | end
            if start < end:
                return group, start, end
            sequence, start = sequence + 1, 0
        return -1, 0, 0

    def _works(self) -> bool:
        """Whether this lane takes part now: as many do as the limit says, the others are parked.

        One that was put aside with a slow sample finds its place taken when it comes back, and is parked.
        """
        w, lane = self.w, self.lane
        if w[lane + W.L_ROLE] == W.WORKING:
            if w[W.FOREGROUND] <= w[W.LIMIT]:
                return True
            w[W.FOREGROUND] -= 1
            w[lane + W.L_ROLE] = W.PARKED
            return False
        if w[W.FOREGROUND] >= w[W.LIMIT]:
            w[lane + W.L_ROLE] = W.PARKED
            return False
        w[lane + W.L_ROLE] = W.WORKING
        w[W.FOREGROUND] += 1
        return True

    def observe(self, samples: int, cost: int, cost_bin: int) -> None:
        """``samples`` were finished that took ``cost`` nanoseconds each."""
        w = self.w
        if w[self.lane + W.L_ROLE] == W.ASIDE:
            w[W.RETURNS] += 1
            w[W.EXCESS] += max(0, cost * samples - w[W.BAR])
        w[W.HISTOGRAM + cost_bin] += samples
        if cost > W.STRAGGLER_NS and samples == 1 and 0 < W.STRAGGLES * w[W.THRESHOLD] < cost:
            self._log()
        w[W.FINISHED] += samples
        if 0 < w[W.THRESHOLD] < cost:
            w[W.SLOW] += samples

    def _log(self) -> None:
        """Note the index of the sample just made, if it is a number."""
        w, group = self.w, self.w[self.lane + W.L_GROUP] - 1
        at = self._group0 + group * self._group_stride
        if group < 0 or w[at + W.G_KIND] & W.PICKLED or w[at + W.G_SERIAL] != w[self.lane + W.L_SERIAL]:
            return
        index = w[self._index0 + group * self._group_stride + w[self.lane + W.L_START]]
        w[W.LOG + w[W.LOGGED] % W.LOG_SIZE] = index
        w[W.LOGGED] += 1

    def _hold(self, group: int, start: int, end: int) -> None:
        w, lane = self.w, self.lane
        w[lane + W.L_GROUP] = w[lane + W.L_BEGAN] = 0
        w[lane + W.L_POS], w[lane + W.L_START], w[lane + W.L_END] = start, start, end
        w[lane + W.L_SERIAL] = w[self._group0 + group * self._group_stride + W.G_SERIAL]
        w[lane + W.L_GROUP] = group + 1

    @property
    def stale(self) -> bool:
        """The epoch this lane works for was given up."""
        return self.w[self.lane + W.L_GENERATION] != self.w[W.GENERATION]

    def claim(self, want: int, layout: int, room: Room) -> Rows | None:
        """Free order: up to ``want`` rows of the first slot that has some for this lane's tickets; None while none has.

        The first claim of a slot decides its layout (``layout``; -1 for samples that travel as objects) and with it
        where the slot's free space begins.
        """
        w = self.w
        epoch = w[self._group0 + (w[self.lane + W.L_GROUP] - 1) * self._group_stride + W.G_EPOCH]
        holes: dict[int, int] = {}  # slot -> one of its holes; few, and only after a death
        for hole in range(w[W.HOLES]):
            slot = w[self._hole + hole] >> 32
            if w[self._slot0 + slot * self._slot_stride + W.S_EPOCH] == epoch:
                holes[slot] = hole
        fill, spare = self._place_for(epoch, holes)
        if fill < 0:
            return None
        slot = w[self._fill + fill % self._ring]
        if slot in holes:
            return self._fill_hole(holes[slot], layout, room)
        at = self._slot0 + slot * self._slot_stride
        first = w[at + W.S_CLAIMED]
        count = min(want, w[at + W.S_EXPECTED] - first, spare)
        self._hold_rows(slot, first, count)
        w[at + W.S_CLAIMED] = first + count
        self._claimed(count)
        return Rows(slot, first, count, self.shape(slot, layout, room))

    def _place_for(self, epoch: int, holes: dict[int, int]) -> tuple[int, int]:
        """The first slot this lane's tickets may go to, by its place in the order of filling, and for how many of them.

        A ticket of group g must have a row in slot g + displacement at the latest. As long as, for every slot, the
        tickets due by then are no more than the rows free until then, each can have one. A ticket due at slot e that
        takes a row of slot f leaves one row less to those due from f on and before e: so they must have one to spare.
        """
        w = self.w
        early = epoch != w[W.EPOCH]
        base, end = (w[W.NEXT_BASE], w[W.FILL_TAIL]) if early else (0, min(w[W.FILL_TAIL], w[W.NEXT_BASE]))
        begin = max(base, w[W.FILL_CURSOR])
        if holes:
            begin = min(begin, *(w[self._slot0 + slot * self._slot_stride + W.S_NUMBER] for slot in holes))
        displacement = w[W.DISPLACEMENT]
        deadline = (w[self.lane + W.L_SERIAL] & 0xFFFFFFFF) + displacement if displacement else end
        oldest = self._oldest(base, end - 1 - displacement) if displacement else end
        rows = due = 0
        found, spare = -1, W.NEVER
        for fill in range(begin, end):
            slot = w[self._fill + fill % self._ring]
            at = self._slot0 + slot * self._slot_stride
            free = 0
            if w[at + W.S_NUMBER] == fill:  # else it was delivered long ago and is in use again
                free = w[at + W.S_EXPECTED] - w[at + W.S_CLAIMED] + (self._holes_in(slot) if slot in holes else 0)
            if free == 0 and fill == w[W.FILL_CURSOR]:
                w[W.FILL_CURSOR] = fill + 1
            if free and found < 0:
                found, spare = fill, W.NEVER
            if fill >= deadline or (found >= 0 and oldest + displacement >= end):
                break
            rows += free
            while oldest + displacement <= fill:
                due += self._unclaimed(oldest)
                oldest += 1
            if due >= rows:
                found = -1
            spare = min(spare, rows - due)
        return found, spare

    def _oldest(self, base: int, last: int) -> int:
        """The first group from ``base`` on that has tickets without a row, or the one after ``last``."""
        w = self.w
        known = number = max(base, w[W.OLDEST])
        while number <= last and self._unclaimed(number) == 0:
            number += 1
        if known == w[W.OLDEST]:
            w[W.OLDEST] = number
        return number

    def _holes_in(self, slot: int) -> int:
        return sum(self.w[self._hole + hole] >> 32 == slot for hole in range(self.w[W.HOLES]))

    def _fill_hole(self, hole: int, layout: int, room: Room) -> Rows:
        """Like a ticket, a hole is first taken and then held."""
        w, last = self.w, self.w[W.HOLES] - 1
        item, moved = w[self._hole + hole], w[self._hole + last]
        w[W.HOLES] = last
        if hole < last:
            w[self._hole + hole] = moved
        slot, row = item >> 32, item & 0xFFFFFFFF
        self._hold_rows(slot, row, 1)
        self._claimed(1)
        return Rows(slot, row, 1, self.shape(slot, layout, room))

    def give_back(self) -> None:
        """Free order: the rows last claimed will not be written; they are for others."""
        w, lane = self.w, self.lane
        if w[lane + W.L_SLOT] and not self.stale:
            slot, rows = w[lane + W.L_SLOT] - 1, w[lane + W.L_ROWS]
            w[W.OLDEST] = min(w[W.OLDEST], w[lane + W.L_SERIAL] & 0xFFFFFFFF)
            self._claimed(-rows)
            for row in range(w[lane + W.L_ROW], w[lane + W.L_ROW] + rows):
                w[self._hole + w[W.HOLES]] = slot << 32 | row
                w[W.HOLES] += 1
        w[lane + W.L_SLOT] = 0

    def _claimed(self, rows: int) -> None:
        w = self.w
        w[self._group0 + (w[self.lane + W.L_GROUP] - 1) * self._group_stride + W.G_UNCLAIMED] -= rows

    def _unclaimed(self, number: int) -> int:
        """Tickets without a row in the group published as this number."""
        w = self.w
        at = self._group0 + w[self._order + number % self._ring] * self._group_stride
        # A group whose number is in use again was settled long ago.
        return w[at + W.G_UNCLAIMED] if w[at + W.G_SERIAL] & 0xFFFFFFFF == number else 0

    def _hold_rows(self, slot: int, first: int, count: int) -> None:
        w, lane = self.w, self.lane
        w[lane + W.L_SLOT] = 0
        w[lane + W.L_ROW], w[lane + W.L_ROWS] = first, count
        w[lane + W.L_SLOT] = slot + 1

    def shape(self, slot: int, layout: int, room: Room) -> int:
        """The slot's layout, made ``layout`` if none was decided yet."""
        w, at = self.w, self._slot0 + slot * self._slot_stride
        if w[at + W.S_LAYOUT] == 0:
            w[at + W.S_BUMP] = room(w[at + W.S_EXPECTED])
            w[at + W.S_LAYOUT] = layout + 2
        return w[at + W.S_LAYOUT] - 2

    def reserve(self, slot: int, size: int) -> int:
        """``size`` bytes of a slot's free space; their offset in the slot."""
        w, at = self.w, self._slot0 + slot * self._slot_stride + W.S_BUMP
        offset = w[at]
        w[at] = offset + size
        return offset

    def finish(self, rows: Rows, group: int, start: int, objects: list[int] | None = None) -> Outcome:
        """Rows written, for the tickets of ``group`` from ``start`` on; ``objects``: where they stand if not in place.

        A ticket somebody else finished first is dropped: its row becomes a hole again.
        """
        w, lane = self.w, self.lane
        slot, first, count = rows.slot, rows.first, rows.count
        last = first + count == w[lane + W.L_ROW] + w[lane + W.L_ROWS]  # else it goes on writing to the slot
        if self.stale:
            if last:
                w[lane + W.L_SLOT] = 0
            return Outcome(-1, wake=False)
        at = self._ticket0 + group * self._group_stride + start
        row_ticket = self._row_ticket0 + slot * self._slot_stride + first
        row_state = self._row_state0 + slot * self._slot_stride + first
        ticket = (group << 32 | start) + 1
        done = count
        if objects is None and not any(w[at : at + count]):
            w[row_ticket : row_ticket + count] = array("q", range(ticket, ticket + count))
            w[row_state : row_state + count] = _filled(W.IN_PLACE, count)
            w[at : at + count] = _filled(W.DONE, count)
        else:
            for i in range(count):
                word = w[at + i]
                if word & 15 != W.PENDING:
                    if w[W.FREE_ORDER]:
                        w[self._hole + w[W.HOLES]] = slot << 32 | first + i
                        w[W.HOLES] += 1
                    done -= 1
                    continue
                w[row_ticket + i] = ticket + i
                w[row_state + i] = W.IN_PLACE if objects is None else W.AS_OBJECT | objects[i] << 8
                w[at + i] = word | W.DONE
        if last:
            w[lane + W.L_SLOT] = 0
        return self._advance(slot, done, needs_collation=objects is not None)

    def fail(self, ticket: int, blob: int, slot: int) -> Outcome:
        """A sample raised: ``blob`` is where its error stands in its group's; with ``slot`` its row stays empty."""
        w = self.w
        at = self._ticket0 + (ticket >> 32) * self._group_stride + (ticket & 0xFFFFFFFF)
        word = w[at]
        if self.stale or word & 15 != W.PENDING:
            return Outcome(-1, wake=False)
        if slot >= 0:
            row = ticket & 0xFFFFFFFF
            w[self._row_ticket0 + slot * self._slot_stride + row] = ticket + 1
            w[self._row_state0 + slot * self._slot_stride + row] = W.ABSENT
        w[W.FAILURES] += 1
        w[at] = word & 0xF0 | W.FAILED | blob << 8
        if slot >= 0:
            return self._advance(slot, 1, needs_collation=False)
        group = self._group0 + (ticket >> 32) * self._group_stride
        w[group + W.G_UNCLAIMED] -= 1
        w[self._unresolved(w[group + W.G_EPOCH])] -= 1
        return Outcome(-1, wake=self._answers(W.ANY))

    def write_blob(self, group: int, size: int) -> int:
        """``size`` bytes of a group's blob; their offset."""
        at = self._group0 + group * self._group_stride + W.G_BLOB
        offset = self.w[at]
        self.w[at] = offset + size
        return offset

    def release(self) -> None:
        """The lane holds no ticket any more."""
        self.w[self.lane + W.L_GROUP] = 0
        self.w[self.lane + W.L_SLOT] = 0

    def ready(self, slot: int, offset: int, size: int, *, failed: bool) -> Outcome:
        """The collated object of a slot stands at ``offset``; the consumer may have it."""
        w, at = self.w, self._slot0 + slot * self._slot_stride
        w[self.lane + W.L_COLLATE] = 0
        if self.stale or w[at + W.S_STATUS] != W.COLLATING:
            return Outcome(-1, wake=False)
        w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = offset, size, int(failed)
        w[at + W.S_STATUS] = W.READY
        return Outcome(-1, wake=self._answers(slot + 1))

    def whole(self, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> Outcome:
        """A batch made by this lane alone: positions ``made`` are done, ``result`` is (offset, size, failed).

        Its samples stand nowhere else: if the lane dies before the result is filed, they are made again.
        """
        w = self.w
        if self.stale:
            self.release()
            return Outcome(-1, wake=False)
        if len(made) == w[self._slot0 + slot * self._slot_stride + W.S_EXPECTED]:
            wake = self.finish(Rows(slot, 0, len(made), -1), group, 0, [W.WHOLE] * len(made)).wake
        else:
            wake = False
            for position in made:
                wake |= self.finish(Rows(slot, position, 1, -1), group, position, [W.WHOLE]).wake
        offset, size, failed = result
        return Outcome(-1, wake=self.ready(slot, offset, size, failed=failed).wake or wake)

    def _advance(self, slot: int, resolved: int, *, needs_collation: bool) -> Outcome:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        if needs_collation:
            w[at + W.S_COLLATE] = 1
        w[at + W.S_DONE] += resolved
        unresolved = self._unresolved(w[at + W.S_EPOCH])
        if w[at + W.S_DONE] < w[at + W.S_EXPECTED] or w[at + W.S_STATUS] != W.FILLING:
            w[unresolved] -= resolved
            return Outcome(-1, wake=self._ends(unresolved))
        if w[at + W.S_COLLATE]:
            w[self.lane + W.L_COLLATE] = slot + 1
            w[at + W.S_STATUS] = W.COLLATING
            w[unresolved] -= resolved
            return Outcome(slot, wake=self._ends(unresolved))
        w[at + W.S_STATUS] = W.READY
        w[unresolved] -= resolved
        return Outcome(-1, wake=self._answers(slot + 1) or self._ends(unresolved))

    def _ends(self, unresolved: int) -> bool:
        """Whether this was the last ticket and the consumer sleeps: where some failed, batches are short of rows."""
        return unresolved == W.UNRESOLVED and self.w[unresolved] == 0 and self._answers(W.ANY)

    def _unresolved(self, epoch: int) -> int:
        """Where the tickets of an epoch are counted."""
        return W.UNRESOLVED if epoch == self.w[W.EPOCH] else W.UNRESOLVED_NEXT

    def _answers(self, event: int) -> bool:
        """Whether the consumer sleeps for this event; it is woken once."""
        awaited = self.w[W.AWAITED]
        if awaited == W.NOTHING or (awaited != event and W.ANY not in (awaited, event)):
            return False
        self.w[W.AWAITED] = W.NOTHING
        return True
