"""The network's part in an iteration: rows of a store, or samples of other hosts, are brought early."""

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.engine.loader_resources import IdlePool
from headrace.engine.ordering.own_order import OwnOrder, own_order
from headrace.engine.plugs import Part, PartFacts
from headrace.engine.settings import Settings
from headrace.engine.step import held
from headrace.engine.worker.maker import Making
from headrace.fetching.arriving import ArrivingGroups
from headrace.fetching.fetched import FetchedMaking, Rows
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetcher_main import Orders
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.source import Source


class FetchersOfLoader:
    """The fetchers that a loader's iterations leave to later ones."""

    def __init__(self) -> None:
        self.idle = IdlePool[Fetcher]()

    def connect(self, orders: Orders) -> None:
        """Have a fetcher begin, for whoever will ask for it: to connect takes a dozen round trips.

        It outlives epochs and their workers, since to open its window takes some more.
        """
        with held():
            fetcher = Fetcher(orders)
            self.idle.put(fetcher)
            fetcher.begin()

    def close(self) -> None:
        """End them; idempotent."""
        self.idle.close()


class FetchPart(Part):
    """A part that holds a fetcher. A derived one says what it is told, and which groups it makes of others."""

    def __init__(self, facts: PartFacts, kept: FetchersOfLoader) -> None:
        """Starts nothing yet."""
        self._settings, self._counters, self._kept = facts.settings, facts.counters, kept
        self._fetcher: Fetcher | None = None

    def _fetching(self, told: Callable[[], Orders]) -> Fetcher:
        """The iteration's fetcher, one that an iteration before it left, or a new one. ``told``: what it is told."""
        if self._fetcher is None:
            orders = told()
            with held():
                fetcher = self._kept.idle.take(lambda fetcher: fetcher.serves(orders) and fetcher.works())
                self._fetcher = fetcher or Fetcher(orders, self._counters.network)
        return self._fetcher

    def making(self, making: Making) -> Making:
        """See ``Part``."""
        return making if self._fetcher is None else FetchedMaking(self._fetcher.arena)

    def count(self) -> None:
        """See ``Part``."""
        if self._fetcher is not None:
            self._counters.network = self._fetcher.network

    def dismiss(self) -> None:
        """See ``Part``."""
        fetcher = self._fetcher
        if fetcher is not None:
            fetcher.dismiss()

    def end(self, *, broken: bool) -> None:
        """See ``Part``."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            self._kept.idle.put(fetcher) if not broken and fetcher.rest() else fetcher.close()


class StorePart(FetchPart):
    """The rows of a store behind a network."""

    def __init__(
        self, facts: PartFacts, kept: FetchersOfLoader, *, cached: bool, revision: Callable[[], str | None]
    ) -> None:
        """``cached``: a cache stands before the store; ``revision`` says of which one it keeps rows."""
        super().__init__(facts, kept)
        self._cached, self._revision = cached, revision

    def source(self, source: Source, seeds: tuple[int, int], saved: dict[str, Any] | None) -> Source:
        """The groups as a fetcher brings their rows."""
        settings: Settings = self._settings
        if self._cached and settings.workers == 0:
            return source  # what makes samples here reads the store itself
        rows = Rows.of(settings.dataset)
        if rows is None or (self._cached and not rows.staged):
            return source
        fetcher = self._fetching(lambda: rows.orders(settings.loading.prefetch, settings.batch_size))
        fetcher.watch(self._revision())
        displacement = settings.scheduling.max_displacement or 0
        arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
        order = own_order(settings.index_sampler)
        key = rows.key if order is None else partial(_marked, order, rows)
        return ArrivingGroups(source, fetcher, key, arrangement, displacement)


def _marked(order: OwnOrder, rows: Rows, index: Any) -> str:
    """The key of a sample, with the block that it is to be read in."""
    return order.marked(index, rows.key(index))
