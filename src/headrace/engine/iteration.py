"""What ``iter(loader)`` returns."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, Self

import torch

from headrace.core.errors import LoaderClosed
from headrace.engine.consumer.accounts import summary
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.fetchers import Fetchers
from headrace.engine.consumer.fetching import Fetcher
from headrace.engine.consumer.hand import Hand, Hands, waiting
from headrace.engine.consumer.membership import Membership, Memberships
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.sources import pack_random
from headrace.engine.consumer.tally import Tally
from headrace.engine.consumer.tracing import Delivered, RunTrace
from headrace.engine.farewell import Farewell
from headrace.engine.memory.slab import Shelf, Slab
from headrace.engine.turn import Turn
from headrace.engine.worker.signals import held

PATIENCE_SECONDS = 3.0
"""How long a close waits for a call in another thread to end; that one, or the next, then does what is left to do."""


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
        self.closing = False
        """Whether somebody asked for the end of it. It is never begun again then."""
        self.turn = Turn()
        """Whose is everything here but ``close``."""
        self._last: dict[str, Any] = {}
        self._before: Callable[[], dict[str, Any]] | None = None  # while an epoch is being begun

    @property
    def yielded(self) -> int:
        """Batches of this epoch that the user has."""
        hand, count = self.counted
        return count - (hand is not None and hand.load is not None)

    def standing(self, generator: torch.Generator | None) -> dict[str, Any]:
        """For a state: where the epoch stands, or ``generator`` after it. Right whenever it is asked for.

        Until the next epoch has really begun, that is where this one stood.
        """
        if self._before is not None:
            return self._before()
        facts = {name: getattr(self, name) for name in ("epoch", "base_seed", "yielded", "finished")}
        if not self.finished:
            return facts | self.progress()
        return facts if generator is None else facts | {"generator": pack_random(generator.get_state())}

    @contextmanager
    def beginning(self, generator: torch.Generator | None) -> Iterator[None]:
        """An epoch is begun in the block; if that fails, it was not."""
        try:
            before = partial(dict[str, Any], self.standing(generator))
        except Exception as error:  # noqa: BLE001  (of a sampler that cannot say where it stands: for whoever asks)
            before = partial(_fail, error)
        self._before = before
        yield
        self._before = None

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
        """``end`` it, in whatever thread. A call that is under way in another one raises ``LoaderClosed`` soon.

        If it does not end in time, or this comes from a signal handler inside it, what is left is done when it raises,
        or by the next call, which does.
        """
        if os.getpid() != self.owner:
            return
        self.closing = True
        for waited_for in (self.pool, self.fetcher):
            if waited_for is not None:
                waited_for.dismiss()
        call = object()
        try:
            if self.turn.wait(call, PATIENCE_SECONDS):
                self.end()
        finally:
            self.turn.leave(call)

    def end(self) -> None:
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


def _fail(error: Exception) -> dict[str, Any]:
    raise error


class Iteration:
    """One pass over the loader's data; with persistent workers, one after the other."""

    def __init__(self, assembly: "Assembly") -> None:
        """Begins at once."""
        self._assembly, self.resources = assembly, assembly.resources
        self._farewell = Farewell(self, assembly.resources.close)
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self._check_owner()
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
                resources.counted, resources.finished = (None, 0), False
                if run is not None:
                    run.abandon()
                self._resumed = self._assembly.begin()
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
        self._check_owner()
        turn, call, hand, load, error = self.resources.turn, object(), None, None, None
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

    def _check_owner(self) -> None:
        if os.getpid() != self.resources.owner:
            msg = (
                f"this iteration belongs to process {self.resources.owner}, which this one was forked from, and two "
                "processes cannot share it; call iter(loader) here for one of your own"
            )
            raise RuntimeError(msg)

    def _handed(self) -> tuple[Hand[Any], Any]:
        """What is to be delivered: the hand, and the batch as the user gets it, if it is one."""
        asked, tally = time.monotonic_ns(), self._assembly.tally
        try:
            hand = self._take()
        finally:
            tally.wait_seconds += (time.monotonic_ns() - asked) / 1e9
        if not isinstance(hand.load, tuple):
            return hand, None
        batch = hand.load[0]
        resources = self.resources
        if resources.counted[0] is not hand:
            resources.counted = hand, resources.counted[1] + 1
            tally.batches += 1
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
        if self.resources.run is None or self.resources.closing:
            if self.resources.finished:
                raise StopIteration
            raise LoaderClosed
        try:
            hand = waiting(self.resources.run.hands) or self.resources.run.next()
        except StopIteration:
            self._assembly.use_up()
            if self._resumed and self.resources.yielded == 0:
                # The state was taken after the last batch: what follows it is a full epoch.
                self._assembly.forget_seed()
                self._begin()
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
                    self._end()
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
    generator: torch.Generator | None

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
