"""A worker's use of the ledger: it takes tickets (``taking``), claims rows (``claims``), files what it made
(``filing``); what it reads there are its ``facts``.

A worker may be killed between any two stores, and the others may go on for a while before the trainer notices. Then it
recomputes everything derived from the primary facts: ticket states, row states, what living lanes hold. Whatever is
taken and held by nobody is queued again, so a ticket is first taken and then held: no two lanes ever hold the same one.
Until the repair, counts may only err on the safe side: UNRESOLVED goes down last, FAILURES up first.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headrace.sched import ledger_layout as W
from headrace.sched.lanes import claims, filing, taking
from headrace.sched.lanes.claims import Claimed, Sized
from headrace.sched.lanes.lane_messages import (
    ClaimResult,
    File,
    Filed,
    Next,
    Room,
    RowSpan,
    TakeSize,
    Tickets,
    Visit,
    Written,
)
from headrace.sched.lanes.lane_words import LaneFacts
from headrace.sched.ledger_layout import Dims, Words


class LaneLedger:
    """A worker's view of the ledger. Its methods take the lock."""

    def __init__(self, words: Words, dims: Dims, lane: int, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        self.facts = LaneFacts(words, dims, lane)
        self.lock = nullcontext() if lock is None else lock
        self._sized = Sized(-1, 0, 0)

    def visit(self, written: Written | None, made: tuple[int, int, int] | None, size: TakeSize) -> Visit:
        """File what was written and what it cost (samples, nanoseconds each, bin); take what is next."""
        facts = self.facts
        if written is not None:
            filing.check(facts, written)
        with self.lock:
            outcome = Filed(-1, wake=False)
            if written is not None:
                outcome = filing.finish(facts, written)
                if outcome.collate >= 0:
                    return Visit(Next.COMPLETED, 0, 0, 0, outcome.collate, outcome.wake)
            if made is not None:
                taking.observe(facts, *made)
            filing.release(facts)
            if facts.w[W.STOP]:
                return Visit(Next.STOP, 0, 0, 0, 0, outcome.wake)
            want = taking.wanted(facts, size)
            taken = taking.take(facts, want)
            if taken[0] == Next.ASLEEP:
                facts.w[facts.lane + W.L_WAITING] = W.FOR_WORK
            elif taken[0] == Next.TICKETS:
                facts.w[W.WORTH_WAKING] = max(want, size.least)
            return Visit(*taken, outcome.wake)

    def end_long(self) -> int:
        """End a chunk that took long; return where the tickets end that were not taken away."""
        w, lane = self.facts.w, self.facts.lane
        with self.lock:
            w[lane + W.L_POS] = w[lane + W.L_END]
            return w[lane + W.L_END]

    def claim(self, want: int, layout: int, room: Room) -> tuple[int, RowSpan]:
        """Claim, in free order, up to ``want`` rows for samples of this layout; -1 for those that travel as
        objects.

        ``room`` is asked outside the lock.
        """
        if layout != self._sized.layout:
            self._sized = Sized(layout, self._sized.rows, room(self._sized.rows))
        while True:
            what, slot, first, count, decided, _ = self._claim(want)
            if what != ClaimResult.OTHER_SIZE:
                return what, RowSpan(slot, first, count, decided)
            self._sized = Sized(layout, slot, room(slot))

    def _claim(self, want: int) -> Claimed:
        with self.lock:
            if self.facts.stale or self.facts.w[W.STOP]:
                return ClaimResult.GIVEN_UP, 0, 0, 0, 0, False
            return claims.claim(self.facts, want, self._sized)

    def give_back(self) -> None:
        """Give back the rows last claimed, in free order: they will not be written and are for others."""
        with self.lock:
            claims.give_back(self.facts)

    def shape(self, slot: int, layout: int, room: Room) -> int:
        """The slot's layout, made ``layout`` if none was decided yet."""
        self.facts.dims.check_slot(slot)
        decided = self.facts.layout(slot)
        if decided != W.UNDECIDED:
            return decided
        return self._shape(slot, layout, room(self.facts.expected(slot)))

    def _shape(self, slot: int, layout: int, size: int) -> int:
        with self.lock:
            return claims.shape(self.facts, slot, layout, size)

    def reserve(self, slot: int, size: int, most: int = W.NEVER) -> int:
        """``size`` bytes of a slot's free space; their offset. Beyond ``most`` nothing is reserved."""
        self.facts.dims.check_slot(slot)
        with self.lock:
            return claims.reserve(self.facts, slot, size, most)

    def finish(self, written: Written) -> Filed:
        """File what was written, while more of the tickets held is to come."""
        filing.check(self.facts, written)
        with self.lock:
            return filing.finish(self.facts, written)

    def fail(self, tickets: Tickets, position: int, file: File) -> Filed:
        """The sample at ``position`` of those held cannot be had: its row, if it has one, stays empty.

        ``file`` is called with the lock.
        """
        with self.lock:
            if self.facts.stale:  # the group's blob is another's by now
                return Filed(-1, wake=False)
            return filing.fail(self.facts, tickets.group, position, file(), tickets.slot)

    def ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        """The collated object of a slot stands at ``offset``; whether the trainer must be woken."""
        self.facts.dims.check_slot(slot)
        with self.lock:
            return filing.ready(self.facts, slot, offset, size, failed=failed)

    def whole(self, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> bool:
        """A batch made by this lane alone, of positions ``made``: see ``filing``."""
        with self.lock:
            return filing.whole(self.facts, slot, group, made, result)
