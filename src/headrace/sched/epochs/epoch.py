"""An epoch as the trainer knows it: what was drawn and not delivered, how it begins, and goes on."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from headrace.sched.epochs.book import Book, Settled, indices_of
from headrace.sched.epochs.repair import Repair, count_lanes, mend
from headrace.sched.epochs.trainer_commands import Arrangement, Failed, ReadySlot, Staff, Terms
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.hand import NOT_YET, Hand, NotYet
from headrace.sched.source import Group, Source


class Epoch:
    """An epoch over the ledger that it shares with the lanes."""

    def __init__(
        self,
        ledger: TrainerLedger,
        terms: Terms,
        source: Source,
        staff: Staff,
        hands: Iterable[Hand[Settled]],
    ) -> None:
        """``hands``: what was handed out and is not settled."""
        self.ledger, self._terms, self.staff, self._hands = ledger, terms, staff, hands
        self.arrangement = terms.arrangement
        self.source: Source = source
        self.book = Book()
        self._drawn: Group | None = None  # and not in the book yet: there was no memory for it
        self.open: dict[int, Group | None] = {}
        """Slots of batches to come, in order; their groups where as drawn."""
        self.exhausted = False
        """Nothing more can be drawn."""
        self._idle_deaths = 0  # of lanes that died over nothing, since a batch was ready
        self.lined_up = 0
        """Batches at the head of ``open`` that are ready, or fewer: as many as were counted, less those taken since."""

    @property
    def is_free(self) -> bool:
        """True if samples become batches as they finish."""
        return self.arrangement is Arrangement.FREE

    @property
    def share(self) -> int:
        """Batches that may be drawn and not delivered; half of the slots are left to the user and to other epochs."""
        return max(1, min(self._terms.window.batches * self.ledger.limit, self.ledger.dims.slots // 2))

    @property
    def is_held_back(self) -> bool:
        """True if there is more to draw, and only what is outstanding forbids it."""
        return not self.exhausted and len(self.open) >= self.share

    def begin(self, epoch: int, limit: int) -> None:
        """Begin the epoch in the ledger, with so many lanes; whatever was there is given up."""
        with self.ledger.lock:
            displacement = self._terms.displacement
            self.ledger.reset(free_order=self.is_free, limit=limit, displacement=displacement, epoch=epoch)

    def draw(self) -> Group | NotYet | None:
        """The next group of the source; the same one until it was entered."""
        if self._drawn is None:
            drawn = self.source.next()
            if drawn is None or drawn is NOT_YET:
                return drawn
            self._drawn = drawn
        return self._drawn

    def enter(self, group: Group) -> None:
        """Note that the group drawn last is in the book, and will be published."""
        self._drawn = None

    def owed(self) -> list[list[Any]]:
        """The indices that were drawn and are in nobody's hand."""
        drawn = [] if self._drawn is None else [list(self._drawn.indices)]
        return self.book.owed(hand.then for hand in self._hands) + drawn

    def begin_again(self) -> None:
        """Make what is owed again, each batch on one worker: what cannot be sent can still be collated where it is.

        What lanes do for the old generation is dropped when they come back with it.
        """
        if self.ledger.story is not None:
            owed = [(group, group.owed) for group in self.book.groups.values()]
            self.ledger.story.begun_again(indices_of(owed), "samples cannot travel between workers")
        if self.is_free:
            self.arrangement = Arrangement.BATCHES
        ledger, free, displacement = self.ledger, self.is_free, self._terms.displacement
        with ledger.lock:
            ledger.reset(free_order=free, limit=ledger.limit, displacement=displacement, epoch=ledger.epoch)
            ledger.stay_local()
            count_lanes(ledger, self.staff.lanes)
        self.source.put_back(self.owed())
        self._drawn, self.book = None, Book()
        self.open.clear()
        self.lined_up = 0
        self.exhausted = False

    def settle(self, settled: Settled) -> None:
        """Note that these samples were delivered or given up."""
        self.book.settle(settled)

    def count_ready(self) -> int:
        """Batches that could be delivered one after the other, now."""
        if self.arrangement is Arrangement.BATCHES:
            self.lined_up = sum(map(self.ledger.is_ready, self.open))
            return self.lined_up
        run = min(self.lined_up, len(self.open))  # what is ready stays so: only what follows is looked at
        for slot in islice(self.open, run, None):
            if not self.ledger.is_ready(slot):
                break
            run += 1
        self.lined_up = run
        return run

    def repair(self, lane: int) -> Repair:
        """Repair the ledger after a lane died: what it held is queued again, or held against it."""
        groups, slots = list(self.book.groups), list(self.open)
        with self.ledger.lock:
            repair = mend(self.ledger, lane, self.staff.lanes, groups, slots)
        if repair.ticket is None and repair.collating < 0:
            self._idle_deaths += 1
        return repair

    @property
    def is_hopeless(self) -> bool:
        """True if lanes died before they made anything, more of them than there are."""
        return self._idle_deaths > self.staff.lanes + 1

    def is_starved(self) -> bool:
        """True if so many samples failed, in free order, that the next batch cannot be filled from what is drawn."""
        if not self.is_free or self.exhausted or not self.ledger.is_resolved:
            return False
        return not self.open or self.ledger.is_filling(next(iter(self.open)))

    def taken(self, slot: int) -> ReadySlot:
        """Take a slot that is ready and return what is in it: it is not waited for any more."""
        self.lined_up, self._idle_deaths = max(0, self.lined_up - 1), 0
        ledger, group = self.ledger, self.open.pop(slot)
        rows, failed = ledger.present(slot), []
        if group is None:
            settled = self._in_rows(slot, rows)
        else:
            settled = [(group, set(range(len(group.indices))))]
            if ledger.failures:
                with ledger.lock:
                    failed = self.named(ledger.failed([group.number]))
        if ledger.story is not None:
            ledger.story.handed_out(slot, indices_of(settled))
        return ReadySlot(slot, group, rows, ledger.expected(slot), settled, failed)

    def close_short(self, dropped: list[int]) -> None:
        """Batches that stay short of rows are complete as they are, or ``dropped``. The lock is held."""
        ledger, self.lined_up = self.ledger, 0
        for slot in list(self.open):
            if ledger.is_filling(slot) and (self._terms.drop_last or not ledger.close(slot)):
                self.book.settle(self._in_rows(slot, ledger.present(slot)))
                dropped.append(slot)
                del self.open[slot]

    def unhanded(self, failed: list[Failed]) -> list[Failed]:
        """The failed samples that are neither settled nor on their way to the user."""
        handed = {(id(group), at) for hand in self._hands for group, positions in hand.then for at in positions}
        return [
            each
            for each in failed
            if each.position in each.group.owed and (id(each.group), each.position) not in handed
        ]

    def named(self, failed: Iterable[tuple[int, int, int]]) -> list[Failed]:
        groups = self.book.groups
        return [Failed(groups[number], position, blob) for number, position, blob in failed]

    def _in_rows(self, slot: int, rows: Iterable[int]) -> Settled:
        """The groups and positions of the samples in a slot's rows."""
        tickets = self.ledger.tickets(slot)
        return self.book.find([tickets[row] for row in rows])
