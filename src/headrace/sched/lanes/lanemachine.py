"""The order in which operations of the ledger follow each other in a lane: events in, commands out.

``next()`` visits the ledger once at most and says what is to be done outside it; what was done is told before it is
called again. A lane may be killed inside any of these calls and between any two of them. There are no samples here:
whoever has them counts them off, in the order of their positions.
"""

from dataclasses import dataclass

from headrace.plan.cost import bin_of
from headrace.sched.epochs.trainer_commands import GO_ON, GoOn
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.lanes.lane_messages import ClaimResult, File, Filed, Next, Room, RowSpan, Tickets, Written
from headrace.sched.lanes.pace import CUT_NS, Pace
from headrace.sched.ledger_story import LaneStory, LaneTold

Failures = list[tuple[int, File]]
"""Positions whose samples cannot be had, and why."""


@dataclass(frozen=True, slots=True)
class RingTrainer:
    """Wake the trainer."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait until woken."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The loader has ended."""


@dataclass(frozen=True, slots=True)
class Make:
    """Make these samples, each after ``begin``, until one is not to be made; then ``made``."""

    tickets: Tickets


@dataclass(frozen=True, slots=True)
class MakeWhole:
    """Make a batch alone, all of these; then ``made_whole``."""

    tickets: Tickets


@dataclass(frozen=True, slots=True)
class PlaceSamples:
    """Say how the next samples that were made look: ``place``, or ``refuse``."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Put the next ``rows.count`` of them into these; then ``wrote``, or ``unwritten``."""

    rows: RowSpan


@dataclass(frozen=True, slots=True)
class CollateSlot:
    """Collate the samples in this slot; then ``collated``."""

    slot: int


@dataclass(frozen=True, slots=True)
class CollateWhole:
    """Collate what was made for this slot, which is not there yet; then ``collated``."""

    slot: int


RING, SLEEP, STOP, PLACE = RingTrainer(), Sleep(), Stop(), PlaceSamples()
LaneCommand = (
    GoOn | RingTrainer | Sleep | Stop | Make | MakeWhole | PlaceSamples | WriteRows | CollateSlot | CollateWhole
)
"""A lane's next action, before it asks again."""


class LaneMachine:
    """The machine of one lane."""

    def __init__(
        self, ledger: LaneLedger, pace: Pace, *, alone: bool, patience: int = CUT_NS, story: LaneStory | None = None
    ) -> None:
        """``alone``: it makes a batch alone wherever it holds all its tickets, and not only where it must.

        ``patience``: the shortest time (nanoseconds) after which tickets are taken away from a lane. ``story``: told
        what becomes of samples, where one is kept.
        """
        self._story = story
        self._ledger, self._facts, self._pace, self._patience = ledger, ledger.facts, pace, patience
        self.alone = alone
        self.begin = ledger.facts.begin  # hot: called for every sample
        self.tickets = Tickets(0, 0, 0, -1)
        self._rows = RowSpan(-1, 0, 0, -1)
        self._slot = -1
        self._then: LaneCommand = GO_ON  # what follows after the trainer was woken
        self._cost: tuple[int, int, int] | None = None  # samples, nanoseconds each, bin: to be told with the next visit
        self._written: Written | None = None  # to be filed before more rows are claimed, or with the next visit
        self._unplaced = 0  # samples made that have no row yet
        self._start, self._left, self._layout = 0, 0, -1  # those of them that were said to look alike
        self._room: Room = _no_room
        self._gives_back = False
        self._failures: Failures = []
        self._collating = -1  # a slot to be collated
        self._whole: list[int] | None = None  # positions of a batch made alone, to be collated
        self._made: list[int] | None = None  # those of the batch being collated; None: it stands in its slot
        self._result: tuple[int, int, bool] | None = None  # of a collation, to be filed

    def next(self) -> LaneCommand:
        """The command to be carried out now."""
        if self._then is not GO_ON:
            then, self._then = self._then, GO_ON
            return then
        # First what somebody may wait for, then what keeps rows or tickets from others, then what this lane does next.
        if self._result is not None or self._collating >= 0:
            return self._collate()
        if self._gives_back or self._failures:
            return self._withdraw()
        if self._left:
            return self._claim()
        if self._unplaced:
            return PLACE
        return self._visit() if self._whole is None else self._collate_whole()

    def made(self, count: int, failed: Failures, elapsed: int, worst: int) -> int:
        """The first ``count`` tickets but ``failed`` were made, in so many nanoseconds, the ``worst`` in so many.

        Returns where those end that are wanted: somebody else makes the rest, which was taken away meanwhile.
        """
        group, start, end, slot = self.tickets
        if end - start > 1 and elapsed >= self._patience:  # below that nobody takes any away: no lock is needed
            end = self._ledger.end_long()
            self.tickets = Tickets(group, start, end, slot)
            failed = [each for each in failed if each[0] < end]
        else:
            self._facts.end(end)
        self._note(elapsed, count, worst)
        self._failures, self._unplaced = failed, end - start - len(failed)
        if self._story is not None:
            self._tell_made(end, elapsed)
        return end

    def _tell_made(self, end: int, elapsed: int) -> None:
        assert self._story is not None
        first = self.tickets.start
        for position, _ in self._failures:
            if first < position:
                self._story.tell(LaneTold.MADE, first, position, more=elapsed)
            self._story.tell(LaneTold.FAILED, position, position + 1)
            first = position + 1
        if first < end:
            self._story.tell(LaneTold.MADE, first, end, more=elapsed)

    def expect(self, now: int) -> None:
        """Note that a call begins which makes all tickets of a batch: the last one when the others should be done."""
        self._facts.expect(now + int(self._pace.cost * 1e9) * (self.tickets.end - 1))

    def made_whole(self, made: list[int], failed: Failures, elapsed: int, *, collate: bool) -> None:
        """Note that positions ``made`` of a batch were made. ``collate``: as they are; else they are placed."""
        self._facts.end(self.tickets.end)
        self._note(elapsed, self.tickets.end, 0)
        self._failures = failed
        if self._story is not None:
            self._tell_made(self.tickets.end, elapsed)
        if collate and made:
            self._whole = made
        else:
            self._unplaced = len(made)

    def _note(self, elapsed: int, samples: int, worst: int) -> None:
        cost = elapsed // samples
        self._cost = samples, cost, bin_of(cost)
        self._pace.note(cost, worst)

    def place(self, start: int, count: int, layout: int = -1, room: Room | None = None) -> None:
        """The next ``count`` samples, from position ``start`` on, look alike; -1: they travel as objects."""
        self._start, self._left, self._layout = start, count, layout
        self._room = _no_room if room is None else room

    def wrote(self, objects: list[int] | None, elapsed: int) -> None:
        """The rows were written, in so many nanoseconds; ``objects``: where their samples stand if not in place."""
        rows = self._rows
        self._pace.wrote(elapsed // rows.count)
        self._written = Written(rows.slot, rows.first, rows.count, self.tickets.group, self._start, objects)
        if self._story is not None:
            self._story.tell(LaneTold.WROTE, self._start, self._start + rows.count, rows.slot, rows.first)
        self._start += rows.count
        self._left -= rows.count
        self._unplaced -= rows.count

    def unwritten(self) -> None:
        """The rows cannot be written with what was to go there: how that is to be placed will be said again."""
        self._left = 0
        self._gives_back = self.tickets.slot < 0

    def refuse(self, position: int, file: File) -> None:
        """The next sample, at ``position``, cannot be sent."""
        self._left = 0
        self._unplaced -= 1
        self._failures.append((position, file))
        if self._story is not None:
            self._story.tell(LaneTold.FAILED, position, position + 1)

    def collated(self, offset: int, size: int, failed: bool) -> None:
        """Note that what the slot's samples became stands at ``offset``; ``failed``: it is an error."""
        self._result = offset, size, failed

    def _visit(self) -> LaneCommand:
        visit = self._ledger.visit(self._written, self._cost, self._pace.size())
        what, group, start, end, slot, wake = visit
        self._written = None
        if what != Next.COMPLETED:  # such a visit ends before costs are counted: they are told with the next
            self._cost = None
        if what == Next.TICKETS:
            self.tickets = Tickets(group, start, end, slot)
            if self._story is not None:
                self._story.tell(LaneTold.TOOK, start, end)
            then: LaneCommand = MakeWhole(self.tickets) if self._is_whole() else Make(self.tickets)
        elif what in (Next.COLLATE, Next.COMPLETED):
            self._collating, then = slot, GO_ON
        else:
            then = SLEEP if what == Next.ASLEEP else STOP
        if wake:
            self._then = then
            return RING
        return then

    def _is_whole(self) -> bool:
        group, start, end, slot = self.tickets
        may = slot >= 0 and (self.alone or self._facts.is_local)
        return may and end - start == self._facts.group(group).count

    def _claim(self) -> LaneCommand:
        """Rows for the samples that were said to look alike."""
        if self._written is not None:  # filed first: the ledger, and so a repair, knows one claim of a lane
            written, self._written = self._written, None
            return self._followed(self._ledger.finish(written))
        slot = self.tickets.slot
        if slot >= 0:
            decided = self._ledger.shape(slot, self._layout, self._room)
            self._rows = RowSpan(slot, self._start, self._left, decided)
            return WriteRows(self._rows)
        found, self._rows = self._ledger.claim(self._left, self._layout, self._room)
        if found == ClaimResult.ROWS:
            return WriteRows(self._rows)
        if self._story is not None:
            end = self._start + self._left
            self._story.tell(LaneTold.WAITED if found == ClaimResult.NO_ROW else LaneTold.DROPPED, self._start, end)
        if found == ClaimResult.NO_ROW:
            return SLEEP
        self._left = self._unplaced = 0  # the epoch was given up
        return GO_ON

    def _withdraw(self) -> LaneCommand:
        """Rows that will not be written, then samples that cannot be had."""
        if self._gives_back:
            self._gives_back = False
            self._ledger.give_back()
            return GO_ON
        return self._followed(self._ledger.fail(self.tickets, *self._failures.pop(0)))

    def _collate(self) -> LaneCommand:
        """A slot whose samples are all there; then what became of them."""
        if self._result is not None:
            return self._file_result(self._result)
        self._slot, self._collating, self._made = self._collating, -1, None
        if not self._facts.stale:
            return CollateSlot(self._slot)
        self._facts.drop_collation()
        return GO_ON

    def _collate_whole(self) -> LaneCommand:
        self._made, self._whole, self._slot = self._whole, None, self.tickets.slot
        self._facts.collate_alone(self._slot)
        return CollateWhole(self._slot)

    def _file_result(self, result: tuple[int, int, bool]) -> LaneCommand:
        self._result = None
        if self._story is not None:
            self._story.tell(LaneTold.COLLATED, 0, 0, self._slot)
        if self._made is not None:
            wake = self._ledger.whole(self._slot, self.tickets.group, self._made, result)
        else:
            wake = self._ledger.ready(self._slot, result[0], result[1], failed=result[2])
        return RING if wake else GO_ON

    def _followed(self, outcome: Filed) -> LaneCommand:
        self._collating = outcome.collate
        return RING if outcome.wake else GO_ON


def _no_room(_: int) -> int:
    return 0
