"""Samples made of rows that the fetcher brought."""

from collections.abc import Callable
from functools import partial
from operator import getitem
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import Subset

from headrace.cache.backends import entry_word as W
from headrace.core.options import Prefetch, Retry
from headrace.engine.worker.maker import Maker, Making
from headrace.engine.worker.observer import Observer
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.fetch_loop import StoreOrders
from headrace.fetching.fetcher_main import Orders
from headrace.fetching.wire import Arrived
from headrace.ondevice.pixels.bundle import named
from headrace.staging.composition import in_bulk, is_ours, speaks_of_encoded, speaks_of_rows
from headrace.staging.stages import Stages, StandingDataset, is_own
from headrace.store.base import RemoteStore, Row


@runtime_checkable
class Networked(Protocol):
    """A dataset whose samples lie in a store, and can be made of rows that somebody else has read."""

    store: Any
    keys: Any
    """The key of each sample, by its index."""

    def made_of(self, index: Any, row: Row) -> Any:
        """The sample ``self[index]``, made of its row."""


class Rows:
    """The rows behind a dataset, if they lie behind a network and the dataset can be given them."""

    def __init__(self, dataset: Networked, indices: Any = None) -> None:
        """``indices``: of the samples that are wanted, if these are a part of the dataset."""
        self._dataset, self._indices = dataset, indices
        self.store: RemoteStore = dataset.store
        self.retry: Retry = getattr(dataset, "retry", Retry())

    @classmethod
    def of(cls, dataset: Any) -> "Rows | None":
        """The rows of ``dataset``, or of the dataset it is a ``Subset`` of; None if samples are read one by one."""
        indices = None
        while type(dataset) is Subset and is_own(dataset, Subset):
            indices = dataset.indices if indices is None else [dataset.indices[index] for index in indices]
            dataset = dataset.dataset
        if not isinstance(dataset, Networked) or not isinstance(dataset.store, RemoteStore):
            return None
        read = dataset.dataset if isinstance(dataset, StandingDataset) else dataset
        speaks = speaks_of_encoded(read) if isinstance(dataset, StandingDataset) else speaks_of_rows(read)
        return cls(dataset, indices) if speaks and in_bulk(read) is None else None

    def orders(self, prefetch: Prefetch, batch: int | None) -> Orders:
        """The orders for a fetcher that brings these rows. ``batch``: rows in a batch, if there are batches."""
        return StoreOrders(store=self.store, prefetch=prefetch, retry=self.retry, batch=batch or 1)

    def key(self, index: Any) -> str:
        found: str = self._dataset.keys[self._inner(index)]
        return found

    def keys(self) -> list[str]:
        """The keys of all samples, by index."""
        return (
            list(self._dataset.keys) if self._indices is None else [self._dataset.keys[each] for each in self._indices]
        )

    def sample(self, index: Any, row: Row) -> Any:
        """The sample, made of its row."""
        return self._dataset.made_of(self._inner(index), row)

    @property
    def staged(self) -> bool:
        """True if the dataset can go on from a row with ``decode``, as from what it fetches itself."""
        return isinstance(self._dataset, StandingDataset) or speaks_of_encoded(self._dataset)

    @property
    def composed(self) -> bool:
        """True if the sample is what the stages make of ``encoded``."""
        return self.staged and is_ours(self._dataset, "made_of")

    def encoded(self, index: Any, row: Row) -> Any:
        """The result of the dataset's ``fetch``, made of its row."""
        return self._dataset.encoded_of(self._inner(index), row)  # type: ignore[attr-defined]  # asked for by ``staged``

    def _inner(self, index: Any) -> Any:
        return index if self._indices is None else self._indices[index]


class FetchedDataset:
    """``dataset[index]``, of what lies in the arena where there is something."""

    def __init__(self, dataset: Any, arena: Arena | None) -> None:
        """``arena``: None where nothing is ever brought."""
        self._arena = arena
        self._get: Callable[[Any], Any] = partial(getitem, dataset)
        self._observer: Observer | None = None
        self._stages: Stages | None = None
        self._rows = None if arena is None else Rows.of(dataset)
        self.place: Arrived | None = None
        """Where the row of the next sample lies."""

    def watched_by(self, observer: Observer) -> None:
        """Tell it what samples are made of, and let it see the stages."""
        self._observer, self._get = observer, observer.getter()
        self._stages = observer.stages() if self._rows is not None and self._rows.composed else None

    def reads(self, body: memoryview, count: int) -> list[Arrived | None]:
        """The places that were written for ``count`` samples: see ``Group.notes``."""
        return wire.read_places(body, count)

    def begin(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing: nothing is kept."""

    def __call__(self, index: Any) -> Any:
        """The sample. A row that could not be read raises the store's error."""
        place, self.place = self.place, None
        if place is None or self._arena is None or self._rows is None:
            return named(index, self._get(index))
        if self._observer is not None:
            self._observer.brought(place.size, place.retries, place.began, place.took)
        row = self._arena.read(place, self._rows.key(index))
        if self._stages is None:
            return named(index, self._rows.sample(index, row))
        return named(index, self._stages.run(index, self._rows.encoded(index, row), W.ENCODED))


class FetchedMaking(Making):
    """The orders by which a process makes samples of what lies in an arena."""

    one_by_one = True

    def __init__(self, arena: Arena, makes: type[FetchedDataset] = FetchedDataset) -> None:
        """``makes``: the class of the maker."""
        self.arena, self._makes = arena, makes

    def plain(self, dataset: Any) -> Maker:
        """The maker."""
        return self._makes(dataset, self.arena)
