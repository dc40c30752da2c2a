"""The iterator that ``iter(loader)`` returns."""

import os
import time
import warnings
from contextlib import AbstractContextManager
from typing import Any, Self

import torch

from headrace.core.errors import LoaderClosed
from headrace.engine import runs
from headrace.engine.finalizer import Finalizer
from headrace.engine.iteration_state import IterationState
from headrace.sched.hand import Delivered, Hand, waiting


class Iteration:
    """A pass over the loader's data; with persistent workers, several passes one after the other."""

    def __init__(self, resources: IterationState) -> None:
        """Begins at once."""
        self.resources, self._page = resources, resources.kept.page(resources.settings.given)
        self._finalizer = Finalizer(self, resources.close)
        self.reset()

    def reset(self) -> None:
        """Begin a further epoch."""
        if os.getpid() != self.resources.owner:
            raise RuntimeError(self._not_ours())
        step, ours = self.resources.step, False
        try:
            with step:
                ours = True
                self._begin()
        finally:
            if ours:
                step.caller = 0

    def _begin(self) -> None:
        resources = self.resources
        if resources.closing:
            raise LoaderClosed
        try:
            with resources.beginning():
                resources.leave()
                runs.begin(resources)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """End it now, as closing the loader does; idempotent."""
        self.resources.close()

    def _end(self) -> None:
        self.resources.closing = True
        self.resources.end()
        self._finalizer.detach()

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self.resources.settings.index_sampler)

    def __next__(self) -> Any:
        """The next batch. It counts as delivered from the store before it is returned; nothing comes after that.

        Calls from several threads wait for each other.
        """
        resources = self.resources
        if os.getpid() != resources.owner:
            raise RuntimeError(self._not_ours())
        step, ours = resources.step, False
        try:
            with step:
                ours = True
                if _autograd._profiler_enabled():  # noqa: SLF001  (as torch asks itself)
                    with _profiled():
                        hand, batch = self._handed()
                else:
                    hand, batch = self._handed()
            load = hand.load
            error = load if isinstance(load, BaseException) else None
            hand.load = None  # from here on no handler runs: nothing is called
            step.caller = 0
            if error is not None:
                raise error
            return batch
        except BaseException as raised:
            load = error = None  # the traceback refers to this frame
            if not ours:
                raise
            step.caller = 0
            ended = resources.over and isinstance(raised, StopIteration)
            if (resources.closing or step.broken) and not ended:
                resources.close()  # whoever asked for it may have waited in vain
            if ended:
                resources.finished = True  # from here on no handler runs
            raise

    def _not_ours(self) -> str:
        return (
            f"this iteration belongs to process {self.resources.owner}, which this one was forked from, and two "
            "processes cannot share it; call iter(loader) here for one of your own"
        )

    def _handed(self) -> tuple[Hand[Any], Any]:
        """The next delivery: the hand, and the batch as the user gets it, if it is one."""
        resources, asked = self.resources, time.monotonic_ns()
        counters = resources.counters
        try:
            hand = self._take()
        finally:
            now = time.monotonic_ns()
            counters.wait_seconds += (now - asked) / 1e9
        load = hand.load
        if not isinstance(load, tuple):
            return hand, None
        if resources.hand is not hand:
            resources.hand = hand
            resources.batches += 1
            counters.batches += 1
            self._page.show(resources.epoch, hand.delivered, now)
            if resources.trace is not None:
                resources.trace.delivered(hand.delivered, asked)
            self._check_length(resources.batches)
        return hand, load[0]

    def _take(self) -> Hand[Any]:
        run = self.resources.run
        if run is None or self.resources.closing:
            if self.resources.over:
                raise StopIteration
            raise LoaderClosed
        hands = run.hands
        try:
            hand = (waiting(hands) if hands else None) or run.next()
        except StopIteration:
            self.resources.use_up()
            self.resources.come_to_end()
            try:
                self.resources.count()
                self._page.show(self.resources.epoch, Delivered(), time.monotonic_ns(), finished=True)
                if self.resources.trace is not None:
                    self.resources.trace.ended()
            finally:
                if self.resources.settings.persistent:
                    self.resources.leave()
                else:
                    self._end()
            raise
        if isinstance(hand.load, tuple):
            self.resources.use_up()
        return hand

    def _check_length(self, yielded: int) -> None:
        """Warn when an iterable dataset gives more than it said, as torch does."""
        settings = self.resources.settings
        if settings.reported is None or yielded <= settings.reported:
            return
        message = (
            f"Length of IterableDataset {settings.dataset} was reported to be {settings.reported}"
            f"(when accessing len(dataloader)), but {yielded} samples have been fetched. "
        )
        if settings.workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker: shard it by torch.utils.data.get_worker_info()."
            )
        warnings.warn(message, stacklevel=3)

    def __getstate__(self) -> Any:
        """An iteration is bound to its processes."""
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


_autograd: Any = torch.autograd  # which does not declare all it has


def _profiled() -> AbstractContextManager[Any]:
    """The span that torch's loader shows in torch.profiler, which costs as much as a lock even when nobody looks."""
    return torch.autograd.profiler.record_function("enumerate(DataLoader)#headrace.Iteration.__next__")
