"""Which operation of the ledger follows which in the consumer of one epoch: events in, commands out.

``next()`` visits the ledger once at most and says what is to be done outside it; what was done is told before it is
called again. Whoever asks may be interrupted inside any of these calls and between any two of them: what was drawn and
not delivered stands in ``facts``, changed by single stores, and everything else is begun again from there
(``give_up``, ``go_on_from``).
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import ClassVar, Generic, TypeVar

from headrace.sched.acts import Act, Arrangement, Failed, Handed, Ready, Staff, Terms
from headrace.sched.book import Book, Group, Numbers, Settled
from headrace.sched.consumer import Batch, ConsumerLedger
from headrace.sched.repair import Repair

BURST = 3
"""Batches to draw one after the other while enough are ready."""

Source = TypeVar("Source")
"""What groups of indices are drawn from."""


class _At(IntEnum):
    """Where the machine stands: the next thing to be looked at."""

    DRAW = 0
    AHEAD = 1
    EXAMINE = 2
    WATCH = 3
    FAILURES = 4
    JUDGE = 5
    LOOK = 6
    CLOSE = 7
    LOOK_AGAIN = 8
    ROUSE = 9
    FOUND = 10
    WAIT = 11


class EpochMachine(Generic[Source]):
    """One epoch's."""

    def __init__(
        self,
        ledger: ConsumerLedger,
        terms: Terms,
        source: Source,
        staff: Staff,
        hands: Iterable[Handed],
        after: "EpochMachine[Source] | None" = None,
    ) -> None:
        """``hands``: what was handed out and is not settled. ``after``: the epoch that this one follows."""
        self._ledger, self._terms, self._staff, self._hands = ledger, terms, staff, hands
        self.arrangement = terms.arrangement
        self.facts: tuple[Source, Book] = source, Book(Numbers() if after is None else after.book.numbers)
        self.open: dict[int, Group | None] = {}
        """Slots of batches to come, in order; their groups where as drawn."""
        self.exhausted = False
        """Nothing more can be drawn."""
        self.follower: EpochMachine[Source] | None = None
        """The next epoch, where it was begun."""
        self.must, self.room = False, 0
        self.woken: Sequence[int] = ()
        self.dropped: list[int] = []
        self.failed: list[Failed] = []
        self.ready: Ready | None = None
        self._at, self._then = _At.DRAW, _At.WATCH
        self._batch: tuple[Batch, Sequence[int]] | None = None  # to be published
        self._found: int | None = None  # a slot to be delivered
        self._one_more = self._early = False
        self._to_follow: int | None = None  # the epoch that the ledger is not told of yet
        self._size, self._lost = 1, 0  # samples of a batch; samples that failed, and left room for others
        self._seen = self._examined = 0  # failures, of those that the ledger counts
        self._run = 0  # batches at the head of ``open`` that are ready, or fewer
        self._draws = True  # until as many are outstanding as may be
        self._unjudged: list[Failed] = []

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
        self.follower = self._batch = None
        self._lost = self._seen = self._examined = self._run = 0
        self._one_more = self.exhausted = False
        self._at = _At.DRAW

    def start(self) -> None:
        """Look at everything anew: the next batch is asked for."""
        self._at, self._one_more = _At.DRAW, False

    def start_ahead(self, room: int | None = None) -> None:
        """Only have batches made, as many as may be outstanding; ``WAIT`` when that was done.

        ``room``: how many, while the epoch before is delivered.
        """
        self._follow()
        self._at, self._early, self.room = _At.AHEAD, room is not None, self.share if room is None else room

    def next(self) -> Act:
        """What is to be done now."""
        if self._batch is not None:
            return self._publish(*self._batch)
        return self._steps[self._at](self)

    def drew(self, batch: Batch, group: Group, ahead: Sequence[int]) -> None:
        """The group was entered in the book, and its indices were written. ``ahead``: positions to be made first."""
        self.open[batch.slot] = None if batch.free_order else group
        self._size, self._one_more = batch.count, False
        self._batch = batch, ahead

    def dry(self) -> None:
        """There is nothing more to draw."""
        self.exhausted, self._one_more = True, False

    def stuck(self) -> None:
        """The next group is not here yet, or there is no memory for it."""
        if self._at == _At.DRAW:
            self._at, self._then = (_At.WAIT if self._one_more else _At.EXAMINE), _At.WATCH
        else:
            self._at = _At.WAIT
        self._one_more = False

    def settle(self, settled: Settled) -> None:
        """These were delivered or given up."""
        self.book.settle(settled)

    def count_ready(self) -> int:
        """Batches that could be delivered one after the other, now."""
        if self.arrangement is Arrangement.BATCHES:
            self._run = sum(map(self._ledger.is_ready, self.open))
            return self._run
        run = min(self._run, len(self.open))  # what is ready stays so: only what follows is looked at
        for slot in islice(self.open, run, None):
            if not self._ledger.is_ready(slot):
                break
            run += 1
        self._run = run
        return run

    def repair(self, lane: int) -> Repair:
        """A lane died: what it held is queued again, or held against it."""
        groups, slots = list(self.book.groups), list(self.open)
        if self.follower is not None:
            groups += self.follower.book.groups
            slots += self.follower.open
        with self._ledger.lock:
            return self._ledger.repair(lane, self._staff.lanes, groups, slots)

    def _publish(self, batch: Batch, ahead: Sequence[int]) -> Act:
        self._batch = None
        if batch.count:
            return self._rings(self._ledger.publish(batch, self._staff.lanes, ahead))
        return self._rings(self._ledger.publish_empty(batch.slot, batch.group, self._staff.lanes))

    def _rings(self, lanes: Sequence[int]) -> Act:
        self.woken = lanes
        return Act.RING if lanes else Act.GO_ON

    def _draw(self) -> Act:
        """As many batches are outstanding as may be; samples that failed leave room for others.

        While most of them are ready, nobody waits for the next: a few are drawn one after the other, which is cheaper.
        """
        outstanding, share = len(self.open), self.share
        if not self.exhausted:
            room = share + self._lost // max(1, self._size) - outstanding
            if room >= min(BURST, share // 4) or 2 * self._run < share:
                self._draws = True
            if self._one_more or (self._draws and room > 0):
                self.must = self._one_more or not outstanding
                return Act.DRAW
            self._draws = False
            return self._examine_then(_At.WATCH)
        self._at, self._then, self.room = _At.EXAMINE, _At.WATCH, share - outstanding
        return Act.DRAW_EARLY if self.room > 0 and not self._ledger.is_local else Act.GO_ON

    def _draw_ahead(self) -> Act:
        self.must = not self._early and not self.open
        return Act.DRAW if not self.exhausted and len(self.open) < self.room else Act.WAIT

    def _examine_then(self, then: _At) -> Act:
        self._at, self._then = _At.EXAMINE, then
        return self._examine()

    def _examine(self) -> Act:
        """A sample may have failed only because it cannot be sent to the worker that collates."""
        failures, self._at = self._ledger.failures, self._then
        if failures == self._examined or self._ledger.is_local:
            return self._steps[self._at](self)
        self._examined = failures
        with self._ledger.lock:
            self.failed = self._named(self._ledger.failed(list(self.book.groups)))
        return Act.EXAMINE

    def _named(self, failed: Iterable[tuple[int, int, int]]) -> list[Failed]:
        groups = self.book.groups
        return [Failed(groups[number], position, blob) for number, position, blob in failed]

    def _watch(self) -> Act:
        self._at = _At.FAILURES
        return Act.WATCH

    def _failures(self) -> Act:
        """Free order: failures come out as soon as they are seen."""
        if not self.is_free or self._ledger.failures == self._seen:
            return self._look()
        if self._ledger.failures != self._examined:
            return self._examine_then(_At.FAILURES)
        with self._ledger.lock:
            if self._ledger.failures != self._examined:  # one failed meanwhile that may only not travel
                return Act.GO_ON
            failed = self._named(self._ledger.failed(list(self.book.groups)))
        handed = {(id(group), at) for hand in self._hands for group, positions in hand.then for at in positions}
        self._unjudged = [
            each
            for each in failed
            if each.position in each.group.owed and (id(each.group), each.position) not in handed
        ]
        return self._judge()

    def _judge(self) -> Act:
        self._at = _At.JUDGE if self._unjudged else _At.LOOK
        if not self._unjudged:
            return Act.GO_ON
        self.failed = [self._unjudged.pop(0)]
        self._seen += 1
        self._lost += 1
        return Act.JUDGE

    def _look(self) -> Act:
        """Whether a slot can be delivered; lanes know that they are waited for if none can."""
        if not self.open and self.exhausted:
            return Act.END
        # In free order batches come as they were filled: the next one is never behind the others for long.
        candidates = list(self.open if self.arrangement is Arrangement.BATCHES else islice(self.open, 1))
        if len(candidates) == 1 and self._ledger.is_ready(candidates[0]):
            self._found = candidates[0]  # it stays ready: nobody has to be kept out to see it
            return self._examine_then(_At.FOUND)
        self._found, self._at = self._ledger.look(candidates), _At.CLOSE
        return Act.GO_ON

    def _close(self) -> Act:
        """Free order: where samples were left out, the last batches stay short of rows.

        Asked after lanes know that they are waited for, or none would say that it was the last.
        """
        self._at = _At.ROUSE
        ledger = self._ledger
        if self._found is not None or not (self.is_free and self.exhausted and ledger.is_resolved):
            return self._rouse()
        self.dropped, self._at = [], _At.LOOK_AGAIN
        with ledger.lock:
            self._run = 0
            for slot in list(self.open):
                if ledger.is_filling(slot) and (self._terms.drop_last or not ledger.close(slot)):
                    self.book.settle(self._in_rows(slot, ledger.present(slot)))
                    self.dropped.append(slot)
                    del self.open[slot]
            self.woken = ledger.rouse(self._staff.lanes)
        return Act.CLOSED

    def _look_again(self) -> Act:
        self._at = _At.ROUSE
        if self.open:
            self._found = self._ledger.look(list(islice(self.open, 1)))
        return Act.GO_ON

    def _rouse(self) -> Act:
        self._at, self._then = _At.EXAMINE, _At.FOUND
        if self._found is not None or (not self.exhausted and self._ledger.is_taken):
            return self._examine()
        # No batch will be published any more that would wake those who wait, or fewer were woken than there is work
        # for: lanes took less at once than they used to.
        return self._rings(self._ledger.wake(self._staff.lanes))

    def _take(self) -> Act:
        """What was found, if anything was."""
        if self._found is not None:
            self._at = _At.DRAW
            return self._deliver(self._found)
        if self._is_starved():
            self._at, self._one_more = _At.DRAW, True
            return self._draw()
        return self._wait()

    def _is_starved(self) -> bool:
        """Free order: so many samples failed that the next batch cannot be filled from what is drawn."""
        if not self.is_free or self.exhausted or not self._ledger.is_resolved:
            return False
        return not self.open or self._ledger.is_filling(next(iter(self.open)))

    def _wait(self) -> Act:
        self._at = _At.DRAW
        return Act.WAIT if self.open or not self.exhausted else Act.GO_ON

    def _deliver(self, slot: int) -> Act:
        self._run = max(0, self._run - 1)
        ledger, group = self._ledger, self.open.pop(slot)
        rows, failed = ledger.present(slot), []
        if group is None:
            settled = self._in_rows(slot, rows)
        else:
            settled = [(group, set(range(len(group.indices))))]
            if ledger.failures:
                with ledger.lock:
                    failed = self._named(ledger.failed([group.number]))
        self.ready = Ready(slot, group, rows, ledger.expected(slot), settled, failed)
        return Act.DELIVER

    def _in_rows(self, slot: int, rows: Iterable[int]) -> Settled:
        """What the samples in a slot's rows are."""
        tickets = self._ledger.tickets(slot)
        return self.book.find(tickets[row] for row in rows)

    _steps: "ClassVar[tuple[Callable[[EpochMachine[Source]], Act], ...]]" = (
        _draw,
        _draw_ahead,
        _examine,
        _watch,
        _failures,
        _judge,
        _look,
        _close,
        _look_again,
        _rouse,
        _take,
        _wait,
    )
