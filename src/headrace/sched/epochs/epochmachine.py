"""The order in which operations of the ledger follow each other in the trainer of one epoch: events in, commands
out.

``next()`` visits the ledger once at most and says what is to be done outside it; what was done is told before it is
called again.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import islice
from typing import ClassVar

from headrace.sched.epochs import trainer_commands
from headrace.sched.epochs.book import Settled
from headrace.sched.epochs.epoch import Epoch
from headrace.sched.epochs.oversight import rouse
from headrace.sched.epochs.publication import Batch
from headrace.sched.source import Group

BURST = 3
"""Batches to draw one after the other while enough are ready."""


class _EpochStep(IntEnum):
    """Steps of the machine: the next thing to be looked at."""

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


class EpochMachine:
    """The machine of one epoch."""

    refills = False
    """Batches are drawn when the next one is asked for, not when one was delivered."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch, self._ledger = epoch, epoch.ledger
        self._at, self._then = _EpochStep.DRAW, _EpochStep.WATCH
        self._batch: tuple[Batch, Sequence[int]] | None = None  # to be published
        self._found: int | None = None  # a slot to be delivered
        self._one_more = False
        self._size = 1  # samples of a batch
        self._lost = self._examined = 0  # of the failures that the ledger counts: judged, which leave room; examined
        self._draws = True  # until as many are outstanding as may be
        self._unjudged: list[trainer_commands.Failed] = []

    def begin_again(self) -> None:
        """Make what is owed again, each batch on one worker: see ``Epoch.begin_again``."""
        self.epoch.begin_again()
        self._batch = None
        self._lost = self._examined = 0
        self._one_more = False
        self._at = _EpochStep.DRAW

    def settle(self, settled: Settled) -> None:
        """Note that these samples were delivered or given up."""
        self.epoch.settle(settled)

    def start(self) -> None:
        """Look at everything anew: the next batch is asked for."""
        self._at, self._one_more = _EpochStep.DRAW, False

    def start_ahead(self) -> None:
        """Have batches made only, as many as may be outstanding; ``WAIT`` when that was done."""
        self._at = _EpochStep.AHEAD

    @property
    def is_ahead(self) -> bool:
        """True if nobody waits for a batch: see ``start_ahead``."""
        return self._at == _EpochStep.AHEAD

    def next(self) -> trainer_commands.Command:
        """The command to be carried out now."""
        if self._batch is not None:
            return self._publish(*self._batch)
        return self._steps[self._at](self)

    def drew(self, batch: Batch, group: Group, ahead: Sequence[int]) -> None:
        """The group was entered in the book, and its indices were written. ``ahead``: positions to be made first."""
        self.epoch.enter(group)
        self.epoch.open[batch.slot] = None if batch.free_order else group
        self._size, self._one_more = batch.count, False
        self._batch = batch, ahead

    def dry(self) -> None:
        """Note that there is nothing more to draw."""
        self.epoch.exhausted, self._one_more = True, False

    def stuck(self) -> None:
        """The next group is not here yet, or there is no memory for it."""
        if self._at == _EpochStep.DRAW:
            self._at, self._then = (_EpochStep.WAIT if self._one_more else _EpochStep.EXAMINE), _EpochStep.WATCH
        else:
            self._at = _EpochStep.WAIT
        self._one_more = False

    def _publish(self, batch: Batch, ahead: Sequence[int]) -> trainer_commands.Command:
        self._batch = None
        if batch.count:
            relaxed = 2 * self.epoch.lined_up >= self.epoch.share
            story = self._ledger.story
            when = 0 if story is None else story.log.clock()  # lanes may take tickets before they are told of
            lanes = self._ledger.publish(batch, self.epoch.staff.lanes, ahead, relaxed=relaxed)
            if story is not None:
                indices = self.epoch.book.groups[batch.group].indices
                story.published(batch.group, batch.slot, indices, ahead, when, free=batch.free_order)
            return self._rings(lanes)
        return self._rings(self._ledger.publish_empty(batch.slot, batch.group, self.epoch.staff.lanes))

    def _rings(self, lanes: Sequence[int]) -> trainer_commands.Command:
        return trainer_commands.Ring(lanes) if lanes else trainer_commands.GO_ON

    def _draw(self) -> trainer_commands.Command:
        """Draw until as many batches are outstanding as may be; samples that failed leave room for others.

        While most of them are ready, nobody waits for the next: a few are drawn one after the other, which is cheaper.
        """
        outstanding, share = len(self.epoch.open), self.epoch.share
        if not self.epoch.exhausted:
            room = share + self._lost // max(1, self._size) - outstanding
            if room >= min(BURST, share // 4) or 2 * self.epoch.lined_up < share:
                self._draws = True
            if self._one_more or (self._draws and room > 0):
                return trainer_commands.Draw(must=self._one_more or not outstanding)
            self._draws = False
        return self._examine_then(_EpochStep.WATCH)

    def _draw_ahead(self) -> trainer_commands.Command:
        if self.epoch.exhausted or len(self.epoch.open) >= self.epoch.share:
            return trainer_commands.WAIT
        return trainer_commands.Draw(must=not self.epoch.open)

    def _examine_then(self, then: _EpochStep) -> trainer_commands.Command:
        self._at, self._then = _EpochStep.EXAMINE, then
        return self._examine()

    def _examine(self) -> trainer_commands.Command:
        """A sample may have failed only because it cannot be sent to the worker that collates."""
        failures, self._at = self._ledger.failures, self._then
        # Read without the lock: within an epoch the count only grows, and one missed now is seen on the next round.
        if failures == self._examined or self._ledger.is_local:
            return self._steps[self._at](self)
        self._examined = failures
        with self._ledger.lock:
            return trainer_commands.CheckSendable(self.epoch.named(self._ledger.failed(list(self.epoch.book.groups))))

    def _watch(self) -> trainer_commands.Command:
        self._at = _EpochStep.FAILURES
        return trainer_commands.SEE_AFTER_LANES

    def _failures(self) -> trainer_commands.Command:
        """Have failures come out as soon as they are seen, in free order."""
        if not self.epoch.is_free or self._ledger.failures == self._lost:
            return self._look()
        if self._ledger.failures != self._examined:
            return self._examine_then(_EpochStep.FAILURES)
        with self._ledger.lock:
            if self._ledger.failures != self._examined:  # one failed meanwhile that may only not travel
                return trainer_commands.GO_ON
            failed = self.epoch.named(self._ledger.failed(list(self.epoch.book.groups)))
        self._unjudged = self.epoch.unhanded(failed)
        return self._judge()

    def _judge(self) -> trainer_commands.Command:
        self._at = _EpochStep.JUDGE if self._unjudged else _EpochStep.LOOK
        if not self._unjudged:
            return trainer_commands.GO_ON
        self._lost += 1
        return trainer_commands.ReportFailure(self._unjudged.pop(0))

    def _look(self) -> trainer_commands.Command:
        """Look for a slot that can be delivered; lanes know that they are waited for if none can."""
        if not self.epoch.open and self.epoch.exhausted:
            return trainer_commands.END
        # In free order batches come as they were filled: the next one is never behind the others for long.
        waiting, any_of_them = self.epoch.open, self.epoch.arrangement is trainer_commands.Arrangement.BATCHES
        candidates = list(waiting if any_of_them else islice(waiting, 1))
        if len(candidates) == 1 and self._ledger.is_ready(candidates[0]):
            self._found = candidates[0]  # it stays ready: nobody has to be kept out to see it
            return self._examine_then(_EpochStep.FOUND)
        # One visit looks and says that somebody waits: a lane that finishes before it is seen, one after it rings.
        self._found, self._at = self._ledger.look(candidates), _EpochStep.CLOSE
        return trainer_commands.GO_ON

    def _close(self) -> trainer_commands.Command:
        """Close the last batches, which stay short of rows in free order where samples were left out.

        Asked after lanes know that they are waited for, or none would say that it was the last.
        """
        self._at, ledger = _EpochStep.ROUSE, self._ledger
        if self._found is not None or not (self.epoch.is_free and self.epoch.exhausted and ledger.is_resolved):
            return self._rouse()
        dropped: list[int] = []
        self._at = _EpochStep.LOOK_AGAIN
        with ledger.lock:
            self.epoch.close_short(dropped)
            return trainer_commands.Release(dropped, rouse(ledger, self.epoch.staff.lanes))

    def _look_again(self) -> trainer_commands.Command:
        self._at = _EpochStep.ROUSE
        if self.epoch.open:
            self._found = self._ledger.look(list(islice(self.epoch.open, 1)))
        return trainer_commands.GO_ON

    def _rouse(self) -> trainer_commands.Command:
        self._at, self._then = _EpochStep.EXAMINE, _EpochStep.FOUND
        if self._found is not None or (not self.epoch.exhausted and self._ledger.is_taken):
            return self._examine()
        # No batch will be published any more that would wake those who wait, or fewer were woken than there is work
        # for: lanes took less at once than they used to.
        return self._rings(self._ledger.wake(self.epoch.staff.lanes))

    def _take(self) -> trainer_commands.Command:
        """Deliver the slot that was found, if there was one."""
        if self._found is not None:
            self._at = _EpochStep.DRAW
            return trainer_commands.Deliver(self.epoch.taken(self._found))
        if self.epoch.is_starved():  # all that was drawn is resolved and a slot still wants rows: nobody would ring
            self._at, self._one_more = _EpochStep.DRAW, True
            return self._draw()
        return self._wait()

    def _wait(self) -> trainer_commands.Command:
        self._at = _EpochStep.DRAW
        return trainer_commands.WAIT if self.epoch.open or not self.epoch.exhausted else trainer_commands.GO_ON

    _steps: "ClassVar[tuple[Callable[[EpochMachine], trainer_commands.Command], ...]]" = (
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
