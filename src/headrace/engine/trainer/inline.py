"""An epoch over a map-style dataset in this process: nothing is prefetched but rows that come over a network."""

import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from typing import Any

from headrace.engine.members import bulk_of
from headrace.engine.settings import Settings
from headrace.engine.step import IterationStep
from headrace.engine.trainer.counters import Errors
from headrace.engine.worker.collation import COLLATION
from headrace.engine.worker.fitting import LeftOut, fitted
from headrace.engine.worker.maker import Making
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.randomness import seeding
from headrace.sched.hand import NOT_YET, Delivered, Hand, Hands, NotYet
from headrace.sched.source import LOOK_SECONDS, Group, Source


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
        settings: Settings,
        making: Making,
        groups: Source,
        *,
        seed: tuple[int, int] | None,
        errors: Errors,
        observer: Observer | None,
        step: IterationStep,
    ) -> None:
        """``seed``: (seed, epoch) for random numbers that belong to the sample; None leaves them to the process.
        ``step``: in windows of which the user's code runs.
        """
        self._step = step
        self._dataset, self._batched = settings.dataset, settings.batched
        self._collate_fn, self._groups = settings.collate_fn, groups
        self._seed = seed
        self.errors = errors
        """The treatment of samples that fail."""
        self._observer, self._number = observer, -1
        self._group: Group | None = None  # that is being made, or was when a handler broke it off
        self.hands: Hands[Group] = deque()
        self._maker = maker = making.here(self._dataset)
        self._get: Callable[[Any], Any] = maker
        self._bulk = bulk_of(self._dataset) if self._batched and not making.one_by_one else None
        if observer is not None:
            maker.watched_by(observer)
            self._bulk = None if self._bulk is None else observer.bulk(self._bulk)
            self._get = observer.samples(maker)

    def progress(self) -> dict[str, Any]:
        """The state needed to go on from here in another process."""
        waiting = [list(hand.then.indices) for hand in self.hands if hand.load is not None and hand.then.indices]
        return self._groups.state(waiting + ([] if self._group is None else [list(self._group.indices)]))

    def abandon(self) -> None:
        """Give up the rest: nothing is ahead here but rows."""
        if self._observer is not None:
            self._observer.undo()
        self._groups.close()

    def next(self, *, block: bool = True) -> Hand[Group] | NotYet:
        """The next batch; exceptions are the user's own. With ``block`` off, ``NOT_YET`` while rows are under way."""
        # Emptied by the last call: only now it is sure that the batch reached the user.
        while self.hands and self.hands[0].load is None:
            _settle(self.hands.popleft().then)
        while True:
            group = self._group or self._groups.next()
            if group is NOT_YET:
                if not block:
                    return NOT_YET
                watched = self._groups.wakes()  # which takes in what has come
                group = self._groups.next()
                if group is NOT_YET:
                    self._wait(watched)
                    continue
            if group is None:
                raise StopIteration
            self._group = group
            made = self._made(group)
            self._group = None
            if made is not None:
                self.hands.append(made)
                return made
            _settle(group)

    def _wait(self, watched: tuple[int, int]) -> None:
        """Wait until rows may have come. ``watched``: see ``Source.wakes``."""
        poll = select.poll()
        if watched[0] >= 0:  # nobody else has part in the work any more
            poll.register(*watched)
        self._step.opened(poll.poll, 1000 * LOOK_SECONDS)

    def _made(self, group: Group) -> Hand[Group] | None:
        """The batch of these, or an error; None where nothing of it is left. What failed is counted here, afterwards:
        the user's code may be broken off anywhere.
        """
        failed: list[tuple[Any, BaseException]] = []
        batch: tuple[Any, int] | Exception
        try:
            batch = self._step.opened(self._batch, group, failed)
        except Exception as error:
            if self._step.interrupted:
                raise  # by a handler: the group is made again
            batch = error  # the user's dataset: the batch is given up, as torch does
        for index, why in failed:
            raised = self.errors.judged(index, why, why)
            if raised is not None:
                return Hand(raised, group, Delivered())
        if isinstance(batch, Exception):
            return Hand(batch, group, Delivered())
        made, samples = batch
        if not samples and group.indices:
            return None
        self.errors.passed(samples)
        self._number += 1
        return Hand((made,), group, Delivered(self._number, samples))

    def _batch(self, group: Group, failed: list[tuple[Any, BaseException]]) -> tuple[Any, int]:
        """The batch, and its samples; those that are left out are added to ``failed``. In a window."""
        with seeding.untouched() if self._seed is not None else nullcontext():
            samples, made = self._samples(group, failed)
            if not made and group.indices:
                return None, 0
            batch = self._collated(samples, made, Delivered(self._number + 1, len(made)))
        if isinstance(batch, LeftOut):
            failed += batch.unfit
            return batch.batch, batch.samples
        return batch, len(made)

    def _samples(self, group: Group, failed: list[tuple[Any, BaseException]]) -> tuple[Any, list[Any]]:
        """The samples, and the indices that did not fail: as many, unless they were made in bulk and others came."""
        made = indices = group.indices
        if self._bulk is not None:
            try:
                samples = self._sample(self._bulk, indices, indices[0] if indices else 0)
            except Exception as error:
                if self._step.interrupted or not self.errors.skips:
                    raise
                failed += [(index, error) for index in indices]
                return [], []
        else:
            samples, made = [], []
            self._maker.begin()
            for index, place in zip(indices, group.made_of or repeat(None), strict=False):
                try:
                    self._maker.place = place
                    samples.append(self._sample(self._get, index, index))
                    made.append(index)
                except Exception as error:
                    if self._step.interrupted:
                        raise
                    failed.append((index, error))  # the user's dataset
                    if not self.errors.skips:
                        return [], []
            self._maker.settle()
        return samples, made

    def _sample(self, get: Callable[[Any], Any], what: Any, seed: Any) -> Any:
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


def _settle(group: Group) -> None:
    """Release the samples of a group that were delivered or given up."""
    if group.release is not None:
        group.release(range(len(group.indices)))
