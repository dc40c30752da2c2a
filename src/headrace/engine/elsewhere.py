"""The interface by which the rest of the engine knows what makes samples on other hosts: the source and destination
of their groups.
"""

from typing import Any, Protocol

from headrace.engine.consumer.counters import LoaderCounters
from headrace.engine.consumer.supply.fetching import Fetcher
from headrace.engine.fetcher.process import Orders
from headrace.engine.worker.brought import Brings
from headrace.sched.acts import Arrangement
from headrace.sched.source import Source


class Elsewhere(Protocol):
    """Other hosts' part in a loader's work. It is a loader's for as long as that lives."""

    @property
    def brings(self) -> Brings:
        """Makes the samples, in each worker."""

    def orders(self, dataset: Any, worker_init_fn: Any, workers: int, batch: int) -> Orders:
        """The orders of a fetcher that has samples made there. Raises ``RemoteError`` for what cannot travel."""

    def groups(
        self,
        groups: Source,
        fetcher: Fetcher,
        counters: LoaderCounters,
        seeds: tuple[int, int],
        arrangement: Arrangement,
        displacement: int,
    ) -> Source:
        """The groups of an epoch, some of them made there. ``seeds``: the loader's, and the epoch."""

    def count(self, fetcher: Fetcher, counters: LoaderCounters) -> None:
        """Bring what is known of other hosts into the counters."""
