"""One epoch over a map-style dataset in this process: nothing is prefetched but rows that come over a network."""

import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import getitem
from typing import Any

from headrace.engine.consumer.counters import Errors
from headrace.engine.consumer.supply.arriving import ArrivingGroups, Planned
from headrace.engine.consumer.supply.exchange import ExchangedGroups
from headrace.engine.consumer.supply.fetcher_process import LOOK_SECONDS
from headrace.engine.staging.caching import Allotted
from headrace.engine.worker import seeding
from headrace.engine.worker.brought import Brought
from headrace.engine.worker.collation import COLLATION
from headrace.engine.worker.fitting import LeftOut, fitted
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.staged import Staged
from headrace.sched.groups import Groups
from headrace.sched.hand import NOT_YET, Delivered, Hand, Hands, NotYet


def collated(collate_fn: Callable[[Any], Any], samples: Any, observer: Observer | None, batch: Delivered) -> Any:
    """The samples, collated; noted if somebody looks."""
    began = time.monotonic_ns()
    try:
        made = collate_fn(samples)
    except StopIteration as error:
        raise RuntimeError("collate_fn raised StopIteration, which would end the epoch") from error
    if observer is not None:
        observer.collated(batch.batch, batch.samples, began)
    return made


class InlineRun:
    """A map-style dataset, one batch per ``next``."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        groups: Groups | ExchangedGroups | ArrivingGroups,
        *,
        batched: bool,
        seed: tuple[int, int] | None,
        errors: Errors,
        observer: Observer | None,
    ) -> None:
        """``dataset``: or what makes its samples, where there is a cache, or where rows are brought.

        ``seed``: (seed, epoch) for random numbers that belong to the sample; None leaves them to the process.
        """
        self._dataset, self._collate_fn, self._groups, self._batched = dataset, collate_fn, groups, batched
        self._seed = seed
        self.errors = errors
        """What becomes of samples that fail."""
        self._observer, self._number = observer, -1
        self.hands: Hands[list[Any]] = deque()
        self._placed = dataset if isinstance(dataset, Staged | Brought) else None
        self._get: Callable[[Any], Any] = self._placed or partial(getitem, dataset)
        self._bulk = getattr(dataset, "__getitems__", None) if batched else None
        if observer is not None:
            self._bulk = None if self._bulk is None else observer.bulk(self._bulk)
            self._get = observer.samples(self._placed or observer.getter())

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here in another process."""
        hands = list(self.hands)
        waiting = [list(hand.then) for hand in hands if hand.load is not None and hand.then]
        return self._groups.progress(waiting, [hand.then for hand in hands])

    def abandon(self) -> None:
        """Nothing is ahead here but rows."""
        if self._observer is not None:
            self._observer.undo()
        self._groups.abandon()

    def next(self, *, block: bool = True) -> Hand[list[Any]] | NotYet:
        """The next batch; exceptions are the user's own. With ``block`` off, ``NOT_YET`` while rows are under way."""
        if any(hand.then is self._groups.drawn for hand in self.hands):  # an interrupt came before it was taken
            self._groups.taken()
        # Emptied by the last call: only now it is sure that the batch reached the user.
        while self.hands and self.hands[0].load is None:
            _settle(self.hands[0].then)
            self.hands.popleft()
        while True:
            indices = self._groups.head()
            if indices is NOT_YET:
                if not block:
                    return NOT_YET
                self._wait()
                continue
            if indices is None:
                raise StopIteration
            try:
                made = self._batch(indices)
            except Exception as error:  # noqa: BLE001  (the user's dataset: the batch is given up, as torch does)
                made = Hand(error, indices, Delivered())
            if made is not None:
                self.hands.append(made)
            self._groups.taken()
            if made is not None:
                return made
            _settle(indices)

    def _wait(self) -> None:
        """Until rows may have come."""
        poll = select.poll()
        poll.register(*self._groups.waited_for())
        poll.poll(1000 * LOOK_SECONDS)

    def _batch(self, indices: list[Any]) -> Hand[list[Any]] | None:
        with seeding.untouched() if self._seed is not None else nullcontext():
            samples, made = self._samples(indices)
            if made or not indices:
                delivered = Delivered(self._number + 1, len(made))
                batch = self._collated(samples, made, delivered)
                if isinstance(batch, LeftOut):
                    batch, delivered = self._without(batch)
                    if not delivered.samples:
                        return None
                self._number += 1
                return Hand((batch,), indices, delivered)
        return None

    def _samples(self, indices: list[Any]) -> tuple[Any, list[Any]]:
        """The samples, and the indices that did not fail: as many, unless they were made in bulk and others came."""
        made = indices
        if self._bulk is not None:
            try:
                samples = self._made(self._bulk, indices, indices[0] if indices else 0)
            except Exception as error:  # noqa: BLE001  (raised again unless the user wants failures skipped)
                for index in indices:
                    self.errors.failed(index, error, error)
                return [], []
        else:
            samples, made = [], []
            if isinstance(self._placed, Staged):
                self._placed.begin()
            for index, place in zip(indices, _places(indices), strict=True):
                try:
                    if self._placed is not None:
                        self._placed.place = place
                    samples.append(self._made(self._get, index, index))
                    made.append(index)
                except Exception as error:  # noqa: BLE001  (as above)
                    self.errors.failed(index, error, error)
            if self._placed is not None:
                self._placed.settle()
        self.errors.passed(len(made))
        return samples, made

    def _made(self, get: Callable[[Any], Any], what: Any, seed: Any) -> Any:
        if self._seed is not None:
            seeding.seed_sample(*self._seed, seed)
        try:
            return get(what)
        except StopIteration as error:
            raise RuntimeError(f"the dataset raised StopIteration for {seed!r}, which would end the epoch") from error

    def _collated(self, samples: Any, made: list[Any], delivered: Delivered) -> Any:
        if self._seed is not None and made:
            seeding.seed_sample(*self._seed, made[0], COLLATION)
        collate_fn = partial(
            fitted,
            self._collate_fn,
            indices=lambda: made,
            dataset=self._dataset,
            batched=self._batched,
            skips=self.errors.skips,
        )
        return collated(collate_fn, samples, self._observer, delivered)

    def _without(self, left: LeftOut) -> tuple[Any, Delivered]:
        """The batch, the samples that did not fit counted as failures."""
        self.errors.passed(-len(left.unfit))
        for index, why in left.unfit:
            self.errors.failed(index, why, why)
        return left.batch, Delivered(self._number + 1, left.samples)


def _places(indices: list[Any]) -> Sequence[Any]:
    """What each sample is made of, where that is known."""
    if isinstance(indices, Planned):
        return indices.places
    return [(plan, None) for plan in indices.plans] if isinstance(indices, Allotted) else [None] * len(indices)


def _settle(indices: list[Any]) -> None:
    """These were delivered or given up."""
    if isinstance(indices, Planned):
        indices.settled(range(len(indices)))
