"""What a lane claims of the slots: rows for samples it has made, the layout they have there, space beside them.

In sampler order rows come with the tickets, and only layout and space are left to claim. The methods take the lock. A
worker may be killed between any two stores: see ``headrace.sched.lane``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headrace.sched import encoding as E
from headrace.sched import words as W
from headrace.sched.moves import ClaimResult, Room, RowSpan
from headrace.sched.view import LaneView
from headrace.sched.words import Dims, Words


class Claims(LaneView):
    """One worker's."""

    def __init__(self, words: Words, dims: Dims, lane: int, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        super().__init__(words, dims, lane)
        self.lock = nullcontext() if lock is None else lock
        self._ring, self._order, self._fill, self._hole = dims.ring, dims.order, dims.fill, dims.hole
        self._sized = (-1, 0, 0)  # the layout and the rows of a batch for which room was reckoned last, and that

    def claim(self, want: int, layout: int, room: Room) -> tuple[int, RowSpan]:
        """Free order: up to ``want`` rows of the first slot that has some for this lane's tickets. Takes the lock.

        The first claim of a slot decides its layout (``layout``; -1 for samples that travel as objects) and with it
        where the slot's free space begins. ``room`` is asked outside the lock.
        """
        if layout != self._sized[0]:
            self._sized = layout, self._sized[1], room(self._sized[1])
        while True:
            what, slot, first, count, decided, _ = self._claimed_rows(want, layout)
            if what != ClaimResult.OTHER_SIZE:
                return what, RowSpan(slot, first, count, decided)
            self._sized = layout, slot, room(slot)

    def _claimed_rows(self, want: int, layout: int) -> tuple[int, int, int, int, int, bool]:
        with self.lock:
            if self.stale or self.w[W.STOP]:
                return ClaimResult.GIVEN_UP, 0, 0, 0, 0, False
            return self._claim(want, layout)

    def shape(self, slot: int, layout: int, room: Room) -> int:
        """The slot's layout, made ``layout`` if none was decided yet. Takes the lock."""
        self.dims.check_slot(slot)
        decided = self.layout(slot)
        if decided != W.UNDECIDED:
            return decided
        size = room(self.expected(slot))
        with self.lock:
            return self._shape(slot, layout, size)

    def reserve(self, slot: int, size: int, most: int = W.NEVER) -> int:
        """``size`` bytes of a slot's free space; their offset. Beyond ``most`` nothing is reserved. Takes the lock."""
        self.dims.check_slot(slot)
        with self.lock:
            w, at = self.w, self._slot0 + slot * self._slot_stride + W.S_BUMP
            offset = w[at]
            if offset + size <= most:
                w[at] = offset + size
            return offset

    def _claim(self, want: int, layout: int) -> tuple[int, int, int, int, int, bool]:
        w = self.w
        epoch = w[self._group0 + E.which(w[self.lane + W.L_GROUP]) * self._group_stride + W.G_EPOCH]
        holes: dict[int, int] = {}  # slot -> one of its holes; few, and only after a death
        for hole in range(w[W.HOLES]):
            slot, _ = E.parts(w[self._hole + hole])
            if w[self._slot0 + slot * self._slot_stride + W.S_EPOCH] == epoch:
                holes[slot] = hole
        fill, spare = self._place_for(epoch, holes)
        if fill < 0:
            w[self.lane + W.L_WAITING] = W.FOR_ROOM
            return ClaimResult.NO_ROW, 0, 0, 0, 0, False
        slot = w[self._fill + fill % self._ring]
        at = self._slot0 + slot * self._slot_stride
        if layout >= 0 and w[at + W.S_LAYOUT] == 0 and w[at + W.S_EXPECTED] != self._sized[1]:
            return ClaimResult.OTHER_SIZE, w[at + W.S_EXPECTED], 0, 0, 0, False
        if slot in holes:
            first, count = self._taken_hole(holes[slot]), 1
            self._hold_rows(slot, first, count)
        else:
            first = w[at + W.S_CLAIMED]
            count = min(want, w[at + W.S_EXPECTED] - first, spare)
            self._hold_rows(slot, first, count)
            w[at + W.S_CLAIMED] = first + count
        self._claimed(count)
        decided = self._shape(slot, layout, self._sized[2])
        return ClaimResult.ROWS, slot, first, count, decided, False

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
        deadline = E.second(w[self.lane + W.L_SERIAL]) + displacement if displacement else end
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
        return sum(E.parts(self.w[self._hole + hole])[0] == slot for hole in range(self.w[W.HOLES]))

    def _taken_hole(self, hole: int) -> int:
        """Like a ticket, a hole is first taken and then held."""
        w, last = self.w, self.w[W.HOLES] - 1
        item, moved = w[self._hole + hole], w[self._hole + last]
        w[W.HOLES] = last
        if hole < last:
            w[self._hole + hole] = moved
        return E.second(item)

    def give_back(self) -> None:
        """Free order: the rows last claimed will not be written; they are for others. Takes the lock."""
        with self.lock:
            self._give_back()

    def _give_back(self) -> None:
        w, lane = self.w, self.lane
        if w[lane + W.L_SLOT] and not self.stale:
            slot, rows = E.which(w[lane + W.L_SLOT]), w[lane + W.L_ROWS]
            w[W.OLDEST] = min(w[W.OLDEST], E.second(w[lane + W.L_SERIAL]))
            self._claimed(-rows)
            for row in range(w[lane + W.L_ROW], w[lane + W.L_ROW] + rows):
                w[self._hole + w[W.HOLES]] = E.pair(slot, row)
                w[W.HOLES] += 1
        w[lane + W.L_SLOT] = 0

    def _claimed(self, rows: int) -> None:
        w = self.w
        w[self._group0 + E.which(w[self.lane + W.L_GROUP]) * self._group_stride + W.G_UNCLAIMED] -= rows

    def _unclaimed(self, number: int) -> int:
        """Tickets without a row in the group published as this number."""
        w = self.w
        at = self._group0 + w[self._order + number % self._ring] * self._group_stride
        # A group whose number is in use again was settled long ago.
        return w[at + W.G_UNCLAIMED] if E.second(w[at + W.G_SERIAL]) == number else 0

    def _hold_rows(self, slot: int, first: int, count: int) -> None:
        w, lane = self.w, self.lane
        w[lane + W.L_SLOT] = 0
        w[lane + W.L_ROW], w[lane + W.L_ROWS] = first, count
        w[lane + W.L_SLOT] = E.some(slot)

    def _shape(self, slot: int, layout: int, room: int) -> int:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        if w[at + W.S_LAYOUT] == 0:
            w[at + W.S_BUMP] = room
            w[at + W.S_LAYOUT] = E.layout(layout)
        return E.layout_in(w[at + W.S_LAYOUT])
