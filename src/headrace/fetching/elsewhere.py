"""The interface by which the rest of the engine knows what makes samples on other hosts: the source and destination
of their groups.
"""

from typing import Any, Protocol

from headrace.caching.staged import BringsStaged
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.fetched import Brings
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetcher_main import Orders
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.source import Source


class Elsewhere(Protocol):
    """Other hosts' part in a loader's work. It is a loader's for as long as that lives."""

    @property
    def brings(self) -> Brings:
        """Makes the samples, in each worker."""

    @property
    def brings_staged(self) -> BringsStaged:
        """The same, where there is a cache."""

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
