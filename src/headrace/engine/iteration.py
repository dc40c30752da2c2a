"""What ``iter(loader)`` returns."""

import os
import time
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol, Self

import torch

from headrace.engine.consumer.accounts import summary
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.fetchers import Fetchers
from headrace.engine.consumer.fetching import Fetcher
from headrace.engine.consumer.hand import Hand, Hands, waiting
from headrace.engine.consumer.membership import Membership, Memberships
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.tally import Tally
from headrace.engine.consumer.tracing import Delivered, RunTrace
from headrace.engine.memory.slab import Shelf, Slab
from headrace.engine.worker.signals import held


class Run(Protocol):
    """One epoch."""

    @property
    def hands(self) -> Hands[Any]:
        """What ``next`` returned and was not delivered, or not noted as such; oldest first."""

    def next(self, *, block: bool = True) -> Any:
        """The next batch or error, in a hand; or StopIteration. Interrupted, it can be called again."""

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here."""

    def abandon(self) -> None:
        """Give up the rest."""


class Resources:
    """What must be ended with an iteration, however it ends, and where it stood then. Does not know the iteration."""

    def __init__(self, shelf: Shelf, fetchers: Fetchers, tally: Tally) -> None:
        """Nothing yet."""
        self.shelf, self.fetchers, self.tally = shelf, fetchers, tally
        self.owner = os.getpid()
        self.operations: list[str] = []
        self.run: Run | None = None
        self.trace: RunTrace | None = None
        self.early: Run | None = None  # the next epoch, if it was begun early
        self.pool: Pool | None = None
        self.slab: Slab | None = None
        self.fetcher: Fetcher | None = None
        self.membership: Membership | None = None
        self.memberships: Memberships | None = None  # where it goes when it is not used any more
        self.epoch = 0
        self.base_seed = 0
        self.counted: tuple[Hand[Any] | None, int] = (None, 0)  # the last hand, and how many batches there were with it
        self.finished = False
        self._last: dict[str, Any] = {}

    @property
    def yielded(self) -> int:
        """Batches of this epoch that the user has."""
        hand, count = self.counted
        return count - (hand is not None and hand.load is not None)

    def progress(self) -> dict[str, Any]:
        """Where the epoch stands, or stood when it was left."""
        if self.run is not None:
            self._last = self.run.progress()
        return self._last

    def count(self) -> None:
        """Bring what workers know of samples and operations into the tally."""
        if self.slab is not None:
            self.tally.sample_bytes, self.tally.operations = summary(self.slab.memory, self.operations)
        if self.fetcher is not None:
            self.tally.network = self.fetcher.network
        if self.membership is not None:
            self.membership.count()

    def close(self) -> None:
        """End the workers and give the memory back, whatever else raises on the way; idempotent.

        In a process forked from the one that began it, nothing: it all belongs to that one.
        """
        if os.getpid() != self.owner:
            return
        with held(), ExitStack() as closing:  # from the last to the first
            closing.push(self._give_back)
            closing.callback(self._end_membership)
            closing.callback(self._end_fetcher)
            closing.callback(self.end_workers)
            closing.callback(self._abandon, "early")
            closing.callback(self._abandon, "run")
            closing.callback(self.count)
            if not self.finished:
                closing.callback(self.progress)

    def leave(self) -> None:
        """The epoch is over; workers and memory are kept."""
        self._abandon("run")

    def _abandon(self, name: str) -> None:
        run: Run | None = getattr(self, name)
        setattr(self, name, None)
        if run is not None:
            run.abandon()

    def end_workers(self) -> None:
        """Those of this iteration; the next epoch has others."""
        try:
            if self.pool is not None:
                self.pool.close()
        finally:
            self.pool = None

    def _end_fetcher(self) -> None:
        fetcher, self.fetcher = self.fetcher, None
        if fetcher is not None:
            self.fetchers.put(fetcher)

    def _end_membership(self) -> None:
        membership, self.membership = self.membership, None
        if membership is not None and self.memberships is not None:
            self.memberships.put(membership)

    def _give_back(self, failed: type[BaseException] | None, *_: object) -> None:
        """The memory; not to be used again where something failed, which may have kept a part of it."""
        slab, self.slab = self.slab, None
        if slab is None:
            return
        if failed is None:
            slab.slots.forget()
            slab.slots.reclaim()
            self.shelf.put(slab)
        else:
            slab.close()


def _close(resources: Resources) -> None:
    """When an iteration was dropped. Nobody sees what is raised here, so nobody would try again."""
    try:
        resources.close()
    except BaseException:
        resources.close()
        raise


class Iteration:
    """One pass over the loader's data; with persistent workers, one after the other."""

    def __init__(self, assembly: "Assembly") -> None:
        """Begins at once."""
        self._assembly, self.resources = assembly, assembly.resources
        self._finalizer = weakref.finalize(self, _close, assembly.resources)
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self._check_owner()
        resources = self.resources
        run, resources.run = resources.run, None
        resources.counted, resources.finished = (None, 0), False
        try:
            if run is not None:
                run.abandon()
            self._resumed = self._assembly.begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it now; idempotent."""
        self.resources.close()
        self._finalizer.detach()

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __len__(self) -> int:
        """Of the index sampler."""
        return self._assembly.length()

    def __next__(self) -> Any:
        """The next batch. It counts as delivered from the store before it is returned; nothing comes after that."""
        self._check_owner()
        hand, batch = self._handed()
        load = hand.load
        try:
            hand.load = None
            if isinstance(load, BaseException):
                raise load
            return batch
        except BaseException as raised:
            hand.load, load = (None if raised is load else load), None  # the traceback refers to this frame
            raise

    def _check_owner(self) -> None:
        if os.getpid() != self.resources.owner:
            msg = (
                f"this iteration belongs to process {self.resources.owner}, which this one was forked from, and two "
                "processes cannot share it; call iter(loader) here for one of your own"
            )
            raise RuntimeError(msg)

    def _handed(self) -> tuple[Hand[Any], Any]:
        """What is to be delivered: the hand, and the batch as the user gets it, if it is one."""
        with _profiled() if _autograd._profiler_enabled() else nullcontext():  # noqa: SLF001  (as torch asks itself)
            asked = time.monotonic_ns()
            with self._assembly.tally.waiting():
                hand = self._take()
            if not isinstance(hand.load, tuple):
                return hand, None
            batch = hand.load[0]
            resources = self.resources
            if resources.counted[0] is not hand:
                resources.counted = hand, resources.counted[1] + 1
                self._assembly.tally.batches += 1
                self._show(hand.delivered, asked)
                self._assembly.check_length(resources.counted[1])
            return hand, batch

    def _show(self, delivered: Delivered, asked: int) -> None:
        """Tell those who look on that a batch was delivered."""
        resources = self.resources
        self._assembly.beacon.show(resources.epoch, delivered)
        if resources.trace is not None:
            resources.trace.delivered(delivered, asked)

    def _take(self) -> Hand[Any]:
        if self.resources.run is None:
            raise StopIteration
        try:
            hand = waiting(self.resources.run.hands) or self.resources.run.next()
        except StopIteration:
            self._assembly.use_up()
            if self._resumed and self.resources.yielded == 0:
                # The state was taken after the last batch: what follows it is a full epoch.
                self._assembly.forget_seed()
                self.reset()
                return self._take()
            self.resources.finished = True
            try:
                self._assembly.beacon.show(self.resources.epoch, Delivered(), finished=True)
                if self.resources.trace is not None:
                    self.resources.trace.ended()
            finally:
                if self._assembly.persistent:
                    self.resources.leave()
                else:
                    self.close()
            raise
        if isinstance(hand.load, tuple):
            self._assembly.use_up()
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
    tally: Tally
    beacon: Beacon
    persistent: bool

    def begin(self) -> bool:
        """Put a new epoch's run into ``resources``; whether it goes on from a saved state."""

    def use_up(self) -> None:
        """The epoch has really begun: the state it goes on from is used up."""

    def forget_seed(self) -> None:
        """The next epoch begins as if with a new iteration."""

    def length(self) -> int:
        """Batches in an epoch."""

    def check_length(self, yielded: int) -> None:
        """Warn when an iterable dataset gives more than it said."""
