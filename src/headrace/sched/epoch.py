"""An epoch as its consumer knows it: what was drawn and not delivered, how it begins, follows another, and goes on.

Whoever asks may be interrupted inside any of these calls and between any two of them: what was drawn and not delivered
stands in ``facts``, changed by single stores, and everything else is begun again from there (``give_up``,
``go_on_from``).
"""

from collections.abc import Iterable
from itertools import islice
from typing import Generic, TypeVar

from headrace.sched.acts import Arrangement, Failed, Handed, ReadySlot, Staff, Terms
from headrace.sched.book import Book, Group, Numbers, Settled, indices_of
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.repair import Repair

Source = TypeVar("Source")
"""What groups of indices are drawn from."""


class Epoch(Generic[Source]):
    """One, over the ledger that it shares with the lanes."""

    def __init__(
        self,
        ledger: ConsumerLedger,
        terms: Terms,
        source: Source,
        staff: Staff,
        hands: Iterable[Handed],
        after: "Epoch[Source] | None" = None,
    ) -> None:
        """``hands``: what was handed out and is not settled. ``after``: the epoch that this one follows."""
        self._ledger, self._terms, self._staff, self._hands = ledger, terms, staff, hands
        self.arrangement = terms.arrangement
        self.facts: tuple[Source, Book] = source, Book(Numbers() if after is None else after.book.numbers)
        self.open: dict[int, Group | None] = {}
        """Slots of batches to come, in order; their groups where as drawn."""
        self.exhausted = False
        """Nothing more can be drawn."""
        self.follower: Epoch[Source] | None = None
        """The next epoch, where it was begun."""
        self._to_follow: int | None = None  # the epoch that the ledger is not told of yet
        self.lined_up = 0
        """Batches at the head of ``open`` that are ready, or fewer: as many as were counted, less those taken since."""

    @property
    def source(self) -> Source:
        """What groups are drawn from."""
        return self.facts[0]

    @property
    def book(self) -> Book:
        """What was drawn from it."""
        return self.facts[1]

    @property
    def is_free(self) -> bool:
        """Whether samples become batches as they finish."""
        return self.arrangement is Arrangement.FREE

    @property
    def share(self) -> int:
        """Batches that may be drawn and not delivered; half of the slots are left to the user and to other epochs."""
        return max(1, min(self._terms.window.batches * self._ledger.limit, self._ledger.dims.slots // 2))

    @property
    def is_held_back(self) -> bool:
        """Whether there is more to draw, and only what is outstanding forbids it."""
        return not self.exhausted and len(self.open) >= self.share

    def begin(self, epoch: int, limit: int) -> None:
        """Begin the epoch in the ledger, with so many lanes; whatever was there is given up."""
        with self._ledger.lock:
            displacement = self._terms.displacement
            self._ledger.reset(free_order=self.is_free, limit=limit, displacement=displacement, epoch=epoch)

    def follow(self, epoch: int) -> None:
        """It is begun while the one before is still delivered: with ``start_ahead``, once all of that is published."""
        self._to_follow = epoch

    def _follow(self) -> None:
        """Tell the ledger, once, that nothing more is published of the epoch before."""
        if self._to_follow is not None:
            with self._ledger.lock:
                self._ledger.follow(self._to_follow)
            self._to_follow = None

    def take_over(self) -> None:
        """The one before was delivered."""
        self._follow()
        with self._ledger.lock:
            self._ledger.advance(self.book.groups)

    def give_up(self, *, local: bool) -> None:
        """What lanes do is void; it will be begun again. ``local``: each batch on one worker.

        What cannot be sent may still be collated where it is.
        """
        if self._ledger.story is not None:
            owed = [(group, group.owed) for group in self.book.groups.values()]
            why = "samples cannot travel between workers" if local else "an interrupt broke something off"
            self._ledger.story.begun_again(indices_of(owed), why)
        if local and self.is_free:
            self.arrangement = Arrangement.BATCHES
        ledger, free, displacement = self._ledger, self.is_free, self._terms.displacement
        with ledger.lock:
            ledger.reset(free_order=free, limit=ledger.limit, displacement=displacement, epoch=ledger.epoch)
            if local:
                ledger.stay_local()
            ledger.count_lanes(self._staff.lanes)

    def go_on_from(self, source: Source) -> None:
        """Follows ``give_up``: ``source`` has all that was drawn and not delivered."""
        self.facts = source, Book(Numbers())
        self.open.clear()
        self.follower = None
        self.lined_up = 0
        self.exhausted = False

    def settle(self, settled: Settled) -> None:
        """These were delivered or given up."""
        self.book.settle(settled)

    def count_ready(self) -> int:
        """Batches that could be delivered one after the other, now."""
        if self.arrangement is Arrangement.BATCHES:
            self.lined_up = sum(map(self._ledger.is_ready, self.open))
            return self.lined_up
        run = min(self.lined_up, len(self.open))  # what is ready stays so: only what follows is looked at
        for slot in islice(self.open, run, None):
            if not self._ledger.is_ready(slot):
                break
            run += 1
        self.lined_up = run
        return run

    def repair(self, lane: int) -> Repair:
        """A lane died: what it held is queued again, or held against it."""
        groups, slots = list(self.book.groups), list(self.open)
        if self.follower is not None:
            groups += self.follower.book.groups
            slots += self.follower.open
        with self._ledger.lock:
            return self._ledger.repair(lane, self._staff.lanes, groups, slots)

    def _is_starved(self) -> bool:
        """Free order: so many samples failed that the next batch cannot be filled from what is drawn."""
        if not self.is_free or self.exhausted or not self._ledger.is_resolved:
            return False
        return not self.open or self._ledger.is_filling(next(iter(self.open)))

    def _taken(self, slot: int) -> ReadySlot:
        """What is in a slot that is ready: it is not waited for any more."""
        self.lined_up = max(0, self.lined_up - 1)
        ledger, group = self._ledger, self.open.pop(slot)
        rows, failed = ledger.present(slot), []
        if group is None:
            settled = self._in_rows(slot, rows)
        else:
            settled = [(group, set(range(len(group.indices))))]
            if ledger.failures:
                with ledger.lock:
                    failed = self._named(ledger.failed([group.number]))
        if ledger.story is not None:
            ledger.story.handed_out(slot, indices_of(settled))
        return ReadySlot(slot, group, rows, ledger.expected(slot), settled, failed)

    def _close_short(self, dropped: list[int]) -> None:
        """Batches that stay short of rows are complete as they are, or ``dropped``. The lock is held."""
        ledger, self.lined_up = self._ledger, 0
        for slot in list(self.open):
            if ledger.is_filling(slot) and (self._terms.drop_last or not ledger.close(slot)):
                self.book.settle(self._in_rows(slot, ledger.present(slot)))
                dropped.append(slot)
                del self.open[slot]

    def _owed(self, failed: list[Failed]) -> list[Failed]:
        """Those that are neither settled nor on their way to the user."""
        handed = {(id(group), at) for hand in self._hands for group, positions in hand.then for at in positions}
        return [
            each
            for each in failed
            if each.position in each.group.owed and (id(each.group), each.position) not in handed
        ]

    def _named(self, failed: Iterable[tuple[int, int, int]]) -> list[Failed]:
        groups = self.book.groups
        return [Failed(groups[number], position, blob) for number, position, blob in failed]

    def _in_rows(self, slot: int, rows: Iterable[int]) -> Settled:
        """What the samples in a slot's rows are."""
        tickets = self._ledger.tickets(slot)
        return self.book.find(tickets[row] for row in rows)
