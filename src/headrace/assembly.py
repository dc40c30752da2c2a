"""The features of a loader, put together: the only module that knows the core and all of them.

A feature is imported when a loader asks for it: what nobody uses costs nothing, and need not be there.
"""

# ruff: noqa: PLC0415  (that is what this module is for)

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from headrace.core.options import TRACE_VARIABLE, Ranks
from headrace.engine.ordering import saved
from headrace.engine.ordering.own_order import own_order
from headrace.engine.plugs import Part, PartFacts
from headrace.engine.settings import Settings, chosen
from headrace.engine.step import held
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.worker.maker import Making
from headrace.sched.source import Source

if TYPE_CHECKING:
    from headrace.cache.cache_options import Cache
    from headrace.caching.cache_part import CacheOfLoader
    from headrace.fetching.fetch_part import FetchersOfLoader
    from headrace.fetching.fetched import Rows
    from headrace.ondevice.pixels.choices import OnDevice
    from headrace.remote.plug import RayHosts
    from headrace.remote.ray_options import Ray
    from headrace.trace.trace_file import Recording

TRACING = "headrace.trace.session"
"""Whoever records what loaders do around him has imported it."""

__all__ = ["Cache", "Features", "OnDevice", "Ray"]


class Features:
    """The features of one loader, and what they keep over its iterations. Does not refer to the loader."""

    def __init__(self, loader: Any, counters: LoaderCounters) -> None:
        """``loader`` has all its arguments. Raises what a feature raises that they do not allow."""
        self._counters = counters
        self._cache: CacheOfLoader | None = None
        self._fetchers: FetchersOfLoader | None = None
        self._recording: Recording | None = None  # of the newest iteration
        self._inherited: Any = None
        self.hosts: RayHosts | None = None
        """Other hosts that make samples."""
        if loader.remote is not None:
            from headrace.remote.plug import hosts

            self.hosts = hosts(loader)

    def connect(self, loader: Any) -> None:
        """Connect while the caller builds a model, if rows lie behind a network and no cache may have them."""
        rows = rows_of(loader.dataset)
        if rows is not None and loader.cache is None and self.hosts is None:
            with held():
                self.fetchers().connect(rows.orders(loader.loading.prefetch, loader.batch_size))

    def record(self, path: str | None) -> None:
        """Find the trace of the iteration that begins: the one at ``path``, or the one that it finds itself in."""
        self._recording = None
        if path is not None or TRACE_VARIABLE in os.environ or TRACING in sys.modules:
            from headrace.trace import session

            self._recording = session.recording(path)

    def settings(self, loader: Any, found: Settings) -> Settings:
        """The settings of an iteration, as the features make them."""
        cache = loader.cache
        if loader.on_device is not None:
            from headrace.ondevice.on_device_part import encoded

            split = None if cache is None else cache.split
            decodes = split is not None and not split[0] and split[1] > 0
            found = encoded(found, loader.on_device, decodes=decodes)
        singly = cache is not None or self.hosts is not None or rows_of(found.dataset) is not None
        return replace(found, traced=self._recording is not None, cached=cache is not None, singly=singly)

    def parts(self, facts: PartFacts, cache: "Cache | None") -> Sequence[Part]:
        """The features' parts in an iteration: what gives samples, who looks at them, where batches go."""
        settings = facts.settings
        slot = CacheSlot(self, facts, cache)
        found: list[Part] = [slot]
        if self.hosts is not None:
            from headrace.remote.remote_part import RemotePart

            found.append(RemotePart(facts, self.fetchers(), self.hosts))
        elif rows_of(settings.dataset) is not None:
            from headrace.fetching.fetch_part import StorePart

            found.append(StorePart(facts, self.fetchers(), cached=cache is not None, revision=slot.revision))
        if self._recording is not None:
            from headrace.observing.trace_part import RecordPart

            found.append(RecordPart(facts, self._recording))
        if settings.on_device:
            from headrace.ondevice.on_device_part import OnDevicePart

            found.append(OnDevicePart(facts))
        elif settings.device is not None or settings.pin_memory:
            from headrace.devices.device_part import DevicePart

            found.append(DevicePart(facts))
        return found

    def fetchers(self) -> "FetchersOfLoader":
        """The fetchers that iterations leave to later ones."""
        if self._fetchers is None:
            from headrace.fetching.fetch_part import FetchersOfLoader

            self._fetchers = FetchersOfLoader()
        return self._fetchers

    def cache(self) -> "CacheOfLoader":
        """The places in a cache that iterations leave to later ones."""
        if self._cache is None:
            from headrace.caching.cache_part import CacheOfLoader

            self._cache = CacheOfLoader(self._counters)
        return self._cache

    def begin_here(self) -> None:
        """Begin in a process that was forked: what the other one records is not ended here."""
        self._inherited, self._recording = self._recording, None

    def rest(self) -> None:
        """The loader is closed, and may be used again."""
        self._recording = None

    def close(self) -> None:
        """Give back what is kept; idempotent."""
        try:
            if self._cache is not None:
                self._cache.close()
        finally:
            if self._fetchers is not None:
                self._fetchers.close()


class CacheSlot(Part):
    """The cache's part in an iteration, once there is one: with ``cache=``, or with a state taken with it."""

    def __init__(self, features: Features, facts: PartFacts, options: "Cache | None") -> None:
        self._features, self._facts, self._options = features, facts, options
        self._part = Part()
        self._is_there = False

    def resume(self, saved: dict[str, Any] | None) -> None:
        """See ``Part``."""
        told = saved is not None and not saved.keys().isdisjoint({"exchanged", "job"})
        if not self._is_there and (told or self._options is not None):
            from headrace.caching.cache_part import CachePart

            self._part, self._is_there = CachePart(self._facts, self._options, self._features.cache()), True
        self._part.resume(saved)

    def source(self, source: Source, seeds: tuple[int, int], saved: dict[str, Any] | None) -> Source:
        """See ``Part``."""
        return self._part.source(source, seeds, saved)

    def revision(self) -> str | None:
        """The revision of the store whose rows are kept, where one is watched."""
        found: str | None = getattr(self._part, "revision", None)
        return found

    def making(self, making: Making) -> Making:
        """See ``Part``."""
        return self._part.making(making)

    def state(self) -> dict[str, Any]:
        """See ``Part``."""
        return self._part.state()

    def count(self) -> None:
        """See ``Part``."""
        self._part.count()

    def end(self, *, broken: bool) -> None:
        """See ``Part``."""
        self._part.end(broken=broken)


def rows_of(dataset: Any) -> "Rows | None":
    """The rows behind a dataset, if they lie behind a network and it can be given them."""
    read = dataset
    while type(read) is Subset:
        read = read.dataset
    if not hasattr(read, "store"):
        return None
    from headrace.fetching.fetched import Rows

    return Rows.of(dataset)


def trace_path(path: str | os.PathLike[str] | None) -> str | None:
    """The path that ``trace=`` names."""
    if path is None:
        return None
    from headrace.trace import session

    return session.checked(path, "trace")


def cache_options(cache: Any, dataset: Any) -> "Cache | None":
    """The meaning of ``cache=``. Raises ``CacheError`` for a dataset that is not in stages."""
    if cache is None:
        return None
    from headrace.cache.cache_options import Cache
    from headrace.staging.stages import check_staged

    found: Cache = chosen("cache", cache, (Cache,), None)
    check_staged(dataset)
    return found


def ray_options(remote: Any) -> "Ray | None":
    """The meaning of ``remote=``."""
    if remote is None:
        return None
    from headrace.remote.ray_options import Ray

    found: Ray = chosen("remote", remote, (Ray,), None)
    return found


def on_device_options(loader: Any, value: Any) -> "OnDevice | None":
    """The meaning of ``on_device=``; None for nothing. ``loader`` has all its other arguments."""
    if value is False or value is None:
        return None
    from headrace.ondevice.on_device_part import chosen as chosen_there

    return chosen_there(loader, value)


def planned_order(
    dataset: Any, shuffle: Any, ranks: Ranks | None, *, memory: int, generator: torch.Generator | None
) -> Any:
    """The planned order of a loader that has no sampler of its user's; None where torch has one for it."""
    if ranks is None and not isinstance(shuffle, str) and (not shuffle or rows_of(dataset) is None):
        return None
    from headrace.sampling.choice import planned

    return planned(dataset, shuffle, ranks, memory=memory, generator=generator)


def taken_up(index_sampler: Any, state: Any) -> dict[str, Any]:
    """The checked state that a loader goes on from, made of one or of those of all ranks. Raises ``StateMismatch``."""
    order, several = own_order(index_sampler), isinstance(state, (list, tuple))
    if order is None and not several:
        return saved.checked(state)
    from headrace.sampling import elastic

    return elastic.taken_up(order, state) if several else elastic.divided(order, saved.checked(state))


def revision(dataset: Any) -> Any:
    """The state of the data behind a dataset that a cache keeps samples of."""
    from headrace.staging import stages

    return stages.revision(dataset)
