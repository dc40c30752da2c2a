"""What ``iter(loader)`` returns."""

import os
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

import torch

from headrace.core.errors import LoaderClosed
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.hand import Hand, waiting
from headrace.engine.consumer.tally import LoaderTally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.farewell import Farewell
from headrace.engine.outset import Outset
from headrace.engine.resources import Resources


class Iteration:
    """One pass over the loader's data; with persistent workers, one after the other."""

    def __init__(self, assembly: "Assembly") -> None:
        """Begins at once."""
        self._assembly, self.resources = assembly, assembly.resources
        self._farewell = Farewell(self, assembly.resources.close)
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        if os.getpid() != self.resources.owner:
            raise RuntimeError(self._not_ours())
        call = object()
        try:
            self._wait_for_turn(call)
            self._begin()
        finally:
            self._leave(call)

    def _begin(self) -> None:
        resources = self.resources
        if resources.closing:
            raise LoaderClosed
        try:
            with resources.beginning(self._assembly.generator):
                run, resources.run = resources.run, None
                resources.finished = False
                if run is not None:
                    run.abandon()
                self._assembly.begin()
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """End it now, as closing the loader does; idempotent."""
        self.resources.close()

    def _end(self) -> None:
        self.resources.closing = True
        self.resources.end()
        self._farewell.detach()

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __len__(self) -> int:
        """Of the index sampler."""
        return self._assembly.length()

    def __next__(self) -> Any:
        """The next batch. It counts as delivered from the store before it is returned; nothing comes after that.

        Calls from several threads wait for each other.
        """
        resources = self.resources
        if os.getpid() != resources.owner:
            raise RuntimeError(self._not_ours())
        turn, call, hand, load, error = resources.turn, object(), None, None, None
        try:
            if turn.setdefault(0, call) is not call:
                self._wait_for_turn(call)
            if _autograd._profiler_enabled():  # noqa: SLF001  (as torch asks itself)
                with _profiled():
                    hand, batch = self._handed()
            else:
                hand, batch = self._handed()
            load = hand.load
            error = load if isinstance(load, BaseException) else None
            hand.load = None  # from here on no handler runs: nothing is called
            del turn[0]
            if error is not None:
                raise error
            return batch
        except BaseException as raised:
            if hand is not None and load is not None and raised is not error:
                hand.load = load
            load = error = None  # the traceback refers to this frame
            self._leave(call)
            raise

    def _wait_for_turn(self, call: object) -> None:
        if not self.resources.turn.wait(call):
            msg = "this iteration is in another call of this thread, which a signal handler must not begin again"
            raise RuntimeError(msg)

    def _leave(self, call: object) -> None:
        """A call raised, or none waits for its result. If it was asked to, the iteration ends with it."""
        resources = self.resources
        try:
            if resources.closing and resources.turn.get(0) is call:
                self._end()
        finally:
            resources.turn.leave(call)

    def _not_ours(self) -> str:
        return (
            f"this iteration belongs to process {self.resources.owner}, which this one was forked from, and two "
            "processes cannot share it; call iter(loader) here for one of your own"
        )

    def _handed(self) -> tuple[Hand[Any], Any]:
        """What is to be delivered: the hand, and the batch as the user gets it, if it is one."""
        resources, assembly, asked = self.resources, self._assembly, time.monotonic_ns()
        tally = assembly.tally
        try:
            hand = self._take()
        finally:
            now = time.monotonic_ns()
            tally.wait_seconds += (now - asked) / 1e9
        load = hand.load
        if not isinstance(load, tuple):
            return hand, None
        before, count = resources.counted
        if before is not hand:
            resources.counted = hand, count + 1
            tally.batches += 1
            assembly.beacon.show(resources.epoch, hand.delivered, now)
            if resources.trace is not None:
                resources.trace.delivered(hand.delivered, asked)
            assembly.check_length(count + 1)
        return hand, load[0]

    def _take(self) -> Hand[Any]:
        run = self.resources.run
        if run is None or self.resources.closing:
            if self.resources.finished:
                raise StopIteration
            raise LoaderClosed
        hands = run.hands
        try:
            hand = (waiting(hands) if hands else None) or run.next()
        except StopIteration:
            self._assembly.outset.use_up()
            self.resources.finished = True
            try:
                self.resources.count()
                self._assembly.beacon.show(self.resources.epoch, Delivered(), time.monotonic_ns(), finished=True)
                if self.resources.trace is not None:
                    self.resources.trace.ended()
            finally:
                if self._assembly.persistent:
                    self.resources.leave()
                else:
                    self._end()
            raise
        if isinstance(hand.load, tuple):
            self._assembly.outset.use_up()
        return hand

    def __getstate__(self) -> Any:
        """An iteration is bound to its processes."""
        msg = "{} cannot be pickled"
        raise NotImplementedError(msg, type(self).__name__)


_autograd: Any = torch.autograd  # which does not declare all it has


def _profiled() -> AbstractContextManager[Any]:
    """The span that torch's loader shows in torch.profiler, which costs as much as a lock even when nobody looks."""
    return torch.autograd.profiler.record_function("enumerate(DataLoader)#headrace.Iteration.__next__")


class Assembly(Protocol):
    """What an iteration needs of whoever puts runs together."""

    resources: Resources
    outset: Outset
    tally: LoaderTally
    beacon: Beacon
    persistent: bool
    generator: torch.Generator | None

    def begin(self) -> None:
        """Put a new epoch's run into ``resources``."""

    def length(self) -> int:
        """Batches in an epoch."""

    def check_length(self, yielded: int) -> None:
        """Warn when an iterable dataset gives more than it said."""
