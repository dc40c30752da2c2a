"""The part of other hosts in an iteration: some of its samples are made there."""

from typing import Any

from headrace.engine.plugs import PartFacts
from headrace.engine.worker.maker import Making
from headrace.fetching.fetch_part import FetchersOfLoader, FetchPart
from headrace.remote.plug import RayHosts
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.source import Source


class RemotePart(FetchPart):
    """See ``Part``."""

    def __init__(self, facts: PartFacts, kept: FetchersOfLoader, hosts: RayHosts) -> None:
        """``hosts``: the loader's, over its iterations."""
        super().__init__(facts, kept)
        self._hosts = hosts

    def source(self, source: Source, seeds: tuple[int, int], saved: dict[str, Any] | None) -> Source:
        """The groups, some of them made on other hosts."""
        settings = self._settings
        told = settings.dataset, settings.worker_init_fn, settings.workers, settings.batch_size or 1
        fetcher = self._fetching(lambda: self._hosts.orders(*told))
        displacement = settings.scheduling.max_displacement or 0
        arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
        return self._hosts.groups(source, fetcher, self._counters, seeds, arrangement, displacement)

    def making(self, making: Making) -> Making:
        """See ``Part``."""
        return making if self._fetcher is None else self._hosts.making(self._fetcher.arena)

    def count(self) -> None:
        """See ``Part``."""
        super().count()
        if self._fetcher is not None:
            self._hosts.count(self._fetcher, self._counters)
