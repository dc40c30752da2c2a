"""A loader's arguments as an iteration finds them, and what follows from them."""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import torch

from headrace.cache.options import Cache
from headrace.core.options import Loading, OnError, Scheduling
from headrace.engine.consumer.cores import most_lanes
from headrace.engine.consumer.ordering.early import is_foreseeable
from headrace.engine.consumer.ordering.facts import Facts, of_loader
from headrace.engine.memory.reservation import Extent
from headrace.engine.pixels.prepared import Prepared
from headrace.engine.worker.brought import Rows
from headrace.sched.acts import Arrangement
from headrace.sched.story import RECORDS
from headrace.trace.file import Recording


@dataclass(frozen=True, slots=True)
class Settings:
    """A loader's arguments, as they are when an iteration begins."""

    dataset: Any
    """With ``on_device``, prepared for that."""
    index_sampler: Any
    iterable: bool
    batched: bool
    own_batches: bool
    """Batches are cut by ``batch_size``; False when the user's batch sampler composes them."""
    own_order: bool
    """The sampler is the one torch chose for ``shuffle``, not the user's."""
    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    workers: int
    adaptive: bool
    """The number of workers is a start, and follows demand."""
    prefetch: int
    """Batches per worker that are made ahead."""
    looks_ahead: bool
    """That is a start, and follows what slow samples hold up."""
    persistent: bool
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    context: BaseContext | None
    generator: torch.Generator | None
    pin_memory: bool
    device: Any
    on_device: bool
    """Samples are brought encoded, and ``collate_fn`` makes bundles of them."""
    on_error: OnError
    loading: Loading
    scheduling: Scheduling
    recording: Recording | None
    cache: Cache | None

    @property
    def given(self) -> Any:
        """The dataset as the user gave it, or a ``Subset`` for one that is a part."""
        inner = isinstance(self.dataset, Prepared)
        return self.dataset.dataset if inner else self.dataset

    @property
    def arrangement(self) -> Arrangement:
        """How samples become batches."""
        if self.in_order:
            return Arrangement.STRICT
        return Arrangement.FREE if self.batched and self.own_batches and not self.bulk else Arrangement.BATCHES

    @property
    def bulk(self) -> bool:
        """Samples are made a batch at a time."""
        in_bulk = bool(getattr(self.dataset, "__getitems__", None))
        return self.cache is None and in_bulk and Rows.of(self.dataset) is None

    @property
    def extent(self) -> Extent:
        """How much work there can be at once."""
        working = most_lanes() if self.adaptive else self.workers
        most = max(working, self.workers)
        rows = None
        if self.own_batches or self.iterable:
            # A batch sampler may be told another size after the loader was made; it is the one that is asked.
            rows = max(self.batch_size or 1, getattr(self.index_sampler, "batch_size", None) or 1)
        told = RECORDS if self.scheduling.story else 0
        return Extent(most + self.scheduling.spares_for(most), self.prefetch * most, rows, told)

    @property
    def samples(self) -> int | None:
        """In an epoch, if that is known."""
        try:
            batches = len(self.index_sampler)
        except TypeError:
            return None
        if not self.batched:
            return batches
        inner = getattr(self.index_sampler, "sampler", None)
        try:
            return len(inner) if inner is not None else None
        except TypeError:
            return None

    @property
    def facts(self) -> Facts:
        """What a state says of the loader it was taken from."""
        return of_loader(
            self.dataset, self.index_sampler, self.batch_size, iterable=self.iterable, workers=self.workers
        )

    @property
    def overlaps(self) -> bool:
        """Whether the next epoch may be begun while the last samples of one are made."""
        wanted = self.persistent and self.scheduling.overlap and self.generator is None and self.cache is None
        return wanted and self.own_order and is_foreseeable(self.index_sampler)
