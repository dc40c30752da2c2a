"""One epoch in this process: no worker is started, and nothing is prefetched but rows that come over a network."""

import copy
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import getitem
from typing import Any

from headrace.engine.consumer.hand import NOT_YET, Hand, Hands, NotYet
from headrace.engine.consumer.ordering.groups import Groups
from headrace.engine.consumer.supply.arriving import ArrivingGroups, Planned
from headrace.engine.consumer.supply.exchange import ExchangedGroups
from headrace.engine.consumer.supply.pulse import LOOK_SECONDS
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.staging.plans import Allotted
from headrace.engine.worker import seeding
from headrace.engine.worker.brought import Brought
from headrace.engine.worker.collator import COLLATION
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.staged import Staged
from headrace.engine.worker.stream import Stream
from headrace.sched.resume import Resume


def collated(
    collate_fn: Callable[[Any], Any], samples: Any, observer: Observer | None, batch: Delivered, *, batched: bool
) -> Any:
    """The samples, collated; noted if somebody looks."""
    began = time.monotonic_ns()
    try:
        made = collate_fn(samples if batched else samples[0])
    except StopIteration as error:
        msg = "collate_fn raised StopIteration, which would end the epoch"
        raise RuntimeError(msg) from error
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
        tally: Tally,
        observer: Observer | None,
    ) -> None:
        """``dataset``: or what makes its samples, where there is a cache, or where rows are brought.

        ``seed``: (seed, epoch) for random numbers that belong to the sample; None leaves them to the process.
        """
        self._dataset, self._collate_fn, self._groups, self._batched = dataset, collate_fn, groups, batched
        self._seed, self._errors, self._tally = seed, errors, tally
        self._observer, self._number = observer, -1
        self.hands: Hands[list[Any]] = deque()
        self._placed = dataset if isinstance(dataset, Staged | Brought) else None
        self._get: Callable[[Any], Any] = self._placed or partial(getitem, dataset)
        self._bulk = getattr(dataset, "__getitems__", None) if batched else None
        if observer is not None:
            self._bulk = None if self._bulk is None else observer.bulk(self._bulk)
            self._get = observer.samples(self._get)

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
            except StopIteration:  # the dataset's: as with torch, that is the end
                raise
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
            if not indices or len(samples):
                delivered = Delivered(self._number + 1, len(samples))
                batch = self._collated(samples, made, delivered)
                self._number += 1
                return Hand((batch,), indices, delivered)
        return None

    def _samples(self, indices: list[Any]) -> tuple[Any, list[Any]]:
        """The samples, and the indices that did not fail."""
        made = indices
        if self._bulk is not None:
            try:
                samples = self._made(self._bulk, indices, indices[0] if indices else 0)
            except Exception as error:  # noqa: BLE001  (raised again unless the user wants failures skipped)
                for index in indices:
                    self._errors.failed(index, error, error)
                return [], []
        else:
            samples, made = [], []
            for index, place in zip(indices, _places(indices), strict=True):
                try:
                    if self._placed is not None:
                        self._placed.place = place
                    samples.append(self._made(self._get, index, index))
                    made.append(index)
                except Exception as error:  # noqa: BLE001  (as above)
                    self._errors.failed(index, error, error)
        self._errors.passed(len(samples))
        self._tally.samples += len(samples)
        return samples, made

    def _made(self, get: Callable[[Any], Any], what: Any, seed: Any) -> Any:
        if self._seed is not None:
            seeding.seed_sample(*self._seed, seed)
        try:
            return get(what)
        except StopIteration as error:
            msg = f"the dataset raised StopIteration for {seed!r}, which would end the epoch"
            raise RuntimeError(msg) from error

    def _collated(self, samples: Any, made: list[Any], delivered: Delivered) -> Any:
        if self._seed is not None and made:
            seeding.seed_sample(*self._seed, made[0], COLLATION)
        return collated(self._collate_fn, samples, self._observer, delivered, batched=self._batched)


def _places(indices: list[Any]) -> Sequence[Any]:
    """What each sample is made of, where that is known."""
    if isinstance(indices, Planned):
        return indices.places
    return [(plan, None) for plan in indices.plans] if isinstance(indices, Allotted) else [None] * len(indices)


def _settle(indices: list[Any]) -> None:
    """These were delivered or given up."""
    if isinstance(indices, Planned):
        indices.settled(range(len(indices)))


class InlineStream:
    """An iterable dataset, one batch per ``next``."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        tally: Tally,
        resumed: Resume,
        errors: Errors,
        observer: Observer | None,
    ) -> None:
        """``resumed``: what the stream starts from."""
        self._errors, self._dataset = errors, dataset
        self._observer, self._number = observer, -1
        item = next if observer is None else observer.items()
        self._collate_fn, self._batched, self._tally = collate_fn, batch_size is not None, tally
        self._begin: Callable[[Resume], Stream] = lambda resume: Stream(
            dataset, batch_size, drop_last=drop_last, keep_partial=errors.skips, resume=resume, item=item
        )
        self._stream, self._reading = self._begin(resumed), False
        # What was delivered, and how the stream stood then.
        self._delivered = replace(resumed, state=copy.deepcopy(self._stream.state()))
        self.hands: Hands[Resume] = deque()

    def abandon(self) -> None:
        """Nothing is ahead here."""
        if self._observer is not None:
            self._observer.undo()

    def progress(self) -> dict[str, Any]:
        """How far the stream has been delivered."""
        now = self._delivered
        for hand in takewhile(lambda hand: hand.load is None, list(self.hands)):
            now = hand.then
        # This process's generators are the user's.
        stream = {"batches": now.batches, "ended": now.ended, "state": now.state, "began": None, "random": None}
        return {"streams": [stream], "turn": 0}

    def next(self, *, block: bool = True) -> Hand[Resume]:
        """The next batch; exceptions are the user's own."""
        while self.hands and self.hands[0].load is None:
            self._delivered = self.hands[0].then
            self.hands.popleft()
        if self._reading and self._can_read_again():
            self._stream = self._begin(self._given)
        self._reading = True
        items, attempts = self._items()
        if items is None:
            self._reading = False
            raise StopIteration
        state = copy.deepcopy(self._stream.state())
        then = Resume(self._given.batches + attempts, state, self._stream.ended)
        hand = Hand(items, then, Delivered()) if isinstance(items, BaseException) else self._made(items, then)
        self.hands.append(hand)
        self._reading = False
        return hand

    @property
    def _given(self) -> Resume:
        """How the stream stood after the last batch that was handed out."""
        return self.hands[-1].then if self.hands else self._delivered

    def _can_read_again(self) -> bool:
        """Where the stream stood when an interrupt came is unknown; one that cannot begin anew goes on as it is."""
        return self._given.state is not None or not self._stream.reads(iter(self._dataset))

    def _made(self, items: list[Any], then: Resume) -> Hand[Resume]:
        delivered = Delivered(self._number + 1, len(items))
        try:
            batch = collated(self._collate_fn, items, self._observer, delivered, batched=self._batched)
        except Exception as error:  # noqa: BLE001  (the user's function: the batch is given up, as torch does)
            return Hand(error, then, Delivered())
        self._number += 1
        self._errors.passed(len(items))
        self._tally.samples += len(items)
        return Hand((batch,), then, delivered)

    def _items(self) -> tuple[list[Any] | BaseException | None, int]:
        """The next batch's items, an error to raise, or None at the end; and how often the stream was asked."""
        attempts = 1
        while True:
            try:
                return self._stream.items(), attempts
            except Exception as error:  # noqa: BLE001  (raised again unless the user wants failures skipped)
                number = self._given.batches + attempts - 1
                raised = self._errors.judged(f"item of batch {number}", error, error)
                if raised is not None:
                    return raised, attempts
                attempts += 1
