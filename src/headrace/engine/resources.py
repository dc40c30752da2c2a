"""What an iteration holds, and gives back however it ends."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from headrace.engine.consumer.accounts import summary
from headrace.engine.consumer.hand import Hand, Hands
from headrace.engine.consumer.ordering.sources import pack_random
from headrace.engine.consumer.processes.pool import Pool
from headrace.engine.consumer.supply.fetchers import Fetchers
from headrace.engine.consumer.supply.fetching import Fetcher
from headrace.engine.consumer.supply.membership import Membership, Memberships
from headrace.engine.consumer.tally import LoaderTally
from headrace.engine.consumer.tracing import RunTrace
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

    def __init__(self, shelf: Shelf, fetchers: Fetchers, tally: LoaderTally) -> None:
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
        self.job = ""
        """Whose the samples of a cache are, for a state."""
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
        if self.job:
            facts["job"] = self.job
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
        """Bring what workers know of samples and operations into the tally, and into the story."""
        if self.pool is not None and self.pool.story is not None:
            self.pool.story.gather()
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
