"""One epoch in this process: nothing is started, nothing is prefetched."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import getitem
from typing import Any

from headrace.engine.consumer.order import Groups
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.worker import seeding
from headrace.engine.worker.collator import COLLATION
from headrace.engine.worker.job import Resume
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stream import Stream


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
        groups: Groups,
        *,
        batched: bool,
        seed: tuple[int, int] | None,
        errors: Errors,
        tally: Tally,
        observer: Observer | None,
    ) -> None:
        """``seed``: (seed, epoch) for random numbers that belong to the sample; None leaves them to the process."""
        self._dataset, self._collate_fn, self._groups, self._batched = dataset, collate_fn, groups, batched
        self._seed, self._errors, self._tally = seed, errors, tally
        self._observer, self.delivered = observer, Delivered(-1)
        self._get: Callable[[Any], Any] = partial(getitem, dataset)
        self._bulk = getattr(dataset, "__getitems__", None) if batched else None
        if observer is not None:
            self._bulk = None if self._bulk is None else observer.bulk(self._bulk)
            self._get = observer.samples(self._get)

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here in another process."""
        return {"pending": self._groups.waiting(), "order": self._groups.order_state()}

    def abandon(self) -> None:
        """Nothing is ahead here."""
        if self._observer is not None:
            self._observer.undo()

    def next(self, *, block: bool = True) -> Any:
        """The next batch; exceptions are the user's own."""
        while True:
            indices = self._groups.next()
            if indices is None:
                raise StopIteration
            with seeding.untouched() if self._seed is not None else nullcontext():
                samples, made = self._samples(indices)
                if not indices or len(samples):
                    return self._collated(samples, made)

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
            for index in indices:
                try:
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

    def _collated(self, samples: Any, made: list[Any]) -> Any:
        if self._seed is not None and made:
            seeding.seed_sample(*self._seed, made[0], COLLATION)
        self.delivered = Delivered(self.delivered.batch + 1, len(samples))
        return collated(self._collate_fn, samples, self._observer, self.delivered, batched=self._batched)


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
        self._errors = errors
        self._observer, self.delivered = observer, Delivered(-1)
        item = next if observer is None else observer.items()
        self._collate_fn, self._batched, self._tally = collate_fn, batch_size is not None, tally
        self._stream = Stream(
            dataset, batch_size, drop_last=drop_last, keep_partial=errors.skips, resume=resumed, item=item
        )
        self._delivered = resumed.batches

    def abandon(self) -> None:
        """Nothing is ahead here."""
        if self._observer is not None:
            self._observer.undo()

    def progress(self) -> dict[str, Any]:
        """How far the stream has been delivered."""
        stream = {
            "batches": self._delivered,
            "ended": self._stream.ended,
            "state": self._stream.state(),
            "began": None,  # this process's generators are the user's
            "random": None,
        }
        return {"streams": [stream], "turn": 0}

    def next(self, *, block: bool = True) -> Any:
        """The next batch; exceptions are the user's own."""
        items = self._items()
        if items is None:
            raise StopIteration
        self._delivered += 1
        self._errors.passed(len(items))
        self._tally.samples += len(items)
        self.delivered = Delivered(self.delivered.batch + 1, len(items))
        return collated(self._collate_fn, items, self._observer, self.delivered, batched=self._batched)

    def _items(self) -> list[Any] | None:
        while True:
            try:
                return self._stream.items()
            except Exception as error:  # noqa: BLE001  (raised again unless the user wants failures skipped)
                self._delivered += 1
                self._errors.failed(f"item of batch {self._delivered - 1}", error, error)
