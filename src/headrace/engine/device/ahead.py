"""Batches taken from a run a little early and sent where they are wanted."""

import time
from collections import deque
from functools import partial
from itertools import starmap
from types import TracebackType
from typing import Any, Final

from headrace.engine.consumer.maprun import NOT_YET
from headrace.engine.consumer.tracing import Delivered, RunTrace
from headrace.engine.device.accelerator import Carrier
from headrace.engine.device.containers import tensors
from headrace.engine.device.pieces import Flat, no_slab

AHEAD = 2
"""Batches that are there or on their way before they are asked for."""

_ONCE: Final[tuple[tuple[()]]] = ((),)


class Parcel:
    """One batch between the run and the user. ``number``: they are counted from 1."""

    __slots__ = ("before", "began", "begun", "delivered", "held", "host", "mark", "number", "there")

    def __init__(self, number: int, host: Any, delivered: Delivered, before: dict[str, Any]) -> None:
        """``before``: where the run stood before it gave this batch."""
        self.number, self.host, self.delivered, self.before = number, host, delivered, before
        self.held = True  # the host's memory is still needed
        self.begun, self.began = False, 0
        self.there: Any = None
        self.mark: Any = None  # once it is on its way


class Ahead:
    """Is a run itself. What was taken and not handed out is still owed, whatever interrupts it at whatever moment.

    That rests on three single steps: a batch enters the queue in the step in which the run returns it, it becomes a
    parcel in its place there, and it is named the last one handed out by the store before the return.
    """

    def __init__(
        self, run: Any, carrier: Carrier, flat: Flat = no_slab, *, trace: RunTrace | None = None, ahead: int = AHEAD
    ) -> None:
        """``run``: where host batches come from; ``flat``: the slab they lie in; ``ahead``: how many to take early."""
        self._run, self._carrier, self._flat, self._trace, self._ahead = run, carrier, flat, trace, ahead
        self._pulls = {block: partial(run.next, block=block) for block in (False, True)}
        self._queue: deque[Any] = deque()  # parcels; behind them, what the run returned and is none yet
        self._last = 0  # the number of the parcel handed out last
        self._before: tuple[int, dict[str, Any]] = (0, {})  # where the run stood before it was asked for which parcel
        self._failure: Exception | None = None  # raised when its turn comes, after the batches before it
        self.delivered = Delivered()

    def progress(self) -> dict[str, Any]:
        """As of the last batch handed out: what is on its way counts as not delivered."""
        for waiting in self._queue:
            if type(waiting) is not Parcel:
                return self._before[1]
            if waiting.number > self._last:
                return waiting.before
        found: dict[str, Any] = self._run.progress() if self._failure is None else self._before[1]
        return found

    def abandon(self) -> None:
        """Give up the rest of the epoch; host memory is free once its copies are done."""
        try:
            self._carrier.finish()
        finally:
            for parcel in self._queue:
                if type(parcel) is Parcel:  # whoever still has it, say a traceback, shall not keep what it held
                    parcel.host = parcel.there = parcel.mark = None
            self._queue.clear()
            self._failure = None
            self._run.abandon()

    def next(self, *, block: bool = True) -> Any:
        """The next batch, there or on its way. Only errors of samples wait for the batches before them."""
        self._release()
        self._fill(block=block)
        return self._hand_out()

    def _hand_out(self) -> Any:
        """In a frame of its own, which no error can refer to that the run raised."""
        parcel = self._owed()
        if parcel is None:
            if self._failure is None:
                return NOT_YET
            raise self._due()
        self._carrier.hand_over(parcel.there, parcel.mark)
        there, self.delivered = parcel.there, parcel.delivered
        self._last = parcel.number  # no signal is handled between this store and the return
        parcel.there = None
        return there

    def _owed(self) -> Parcel | None:
        """The parcel to hand out next. All that are in the queue are on their way."""
        for parcel in self._queue:
            if parcel.number > self._last:
                found: Parcel = parcel
                return found
        return None

    def _fill(self, *, block: bool) -> None:
        """Have batches on their way, as many as are wanted and ready."""
        while True:
            self._send()
            newest = self._queue[-1].number if self._queue else self._last
            if newest - self._last >= self._ahead or self._failure is not None:
                return
            if self._before[0] != newest + 1:
                self._before = newest + 1, self._run.progress()
            alone, size = newest == self._last, len(self._queue)
            try:
                self._queue.extend(starmap(self._pulls[block and alone], _ONCE))
            except Exception as error:
                if alone:
                    self._before = 0, {}
                    raise
                self._failure = error.with_traceback(_beneath(error.__traceback__))
                return
            if len(self._queue) == size:  # that is what StopIteration comes to there
                if alone:
                    raise StopIteration
                self._failure = StopIteration()
            elif self._queue[-1] is NOT_YET:
                self._queue.pop()
                return

    def _send(self) -> None:
        """Put the newest batch on its way, if it is not yet."""
        if not self._queue:
            return
        if type(self._queue[-1]) is not Parcel:
            if self._queue[-1] is NOT_YET:
                self._queue.pop()
                return
            number, before = self._before
            self._queue[-1] = Parcel(number, self._queue[-1], self._run.delivered, before)
        parcel = self._queue[-1]
        if parcel.mark is None:
            if parcel.begun:  # and interrupted: what was under way then must not be when its memory is used again
                self._carrier.finish()
            parcel.begun, parcel.began = True, time.monotonic_ns()
            parcel.there, parcel.mark = self._carrier.copy(parcel.host, self._flat)

    def _due(self) -> Exception:
        """The error whose turn it is. No frame of ours keeps it: it refers to them."""
        failure, self._failure = self._failure, None
        self._before = 0, {}
        assert failure is not None
        return failure

    def _release(self) -> None:
        """Let go of host batches whose copies are done; they are done in the order in which they were begun."""
        for parcel in self._queue:
            if type(parcel) is not Parcel or parcel.mark is None:
                break
            if parcel.held:
                if not self._carrier.reached(parcel.mark):
                    break
                self._note(parcel)
                parcel.host, parcel.held = None, False
        while self._queue and type(self._queue[0]) is Parcel:
            if self._queue[0].held or self._queue[0].number > self._last:
                break
            parcel = self._queue.popleft()
            self._carrier.release(parcel.mark)
            parcel.mark = None

    def _note(self, parcel: Parcel) -> None:
        if self._trace is None:
            return
        took = self._carrier.took(parcel.mark)
        size = sum(tensor.nbytes for tensor in tensors(parcel.host))
        elapsed = time.monotonic_ns() - parcel.began if took is None else took
        self._trace.copied(parcel.delivered, size, parcel.began, elapsed)


def _beneath(traceback: TracebackType | None) -> TracebackType | None:
    """Without our own frame, which has parcels in it."""
    return None if traceback is None else traceback.tb_next
