"""The cache's part in an iteration: groups as it answers them, samples beside it, its figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace.cache import job_identity
from headrace.cache.cache_options import Cache
from headrace.caching.exchange import ExchangedGroups, NoCache, SampleIds
from headrace.caching.membership import Hits, Membership, caching, origins
from headrace.caching.staged_making import StagedMaking
from headrace.engine.loader_resources import IdlePool
from headrace.engine.ordering.epoch_members import members
from headrace.engine.ordering.saved import members_of
from headrace.engine.plugs import Part, PartFacts
from headrace.engine.settings import Settings
from headrace.engine.step import held
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.worker.maker import Making
from headrace.sched.groups import Groups
from headrace.sched.source import Source
from headrace.staging.stages import Stages


class CacheOfLoader:
    """A loader's use of a cache, over its iterations."""

    def __init__(self, counters: LoaderCounters) -> None:
        self.hits = Hits(counters)
        self.memberships = IdlePool[Membership]()

    def close(self) -> None:
        """Leave the cache; idempotent."""
        self.memberships.close()
        self.hits.counts.close()


class CachePart(Part):
    """See ``Part``."""

    def __init__(self, facts: PartFacts, options: Cache | None, kept: CacheOfLoader) -> None:
        """``options``: None where a state was taken with a cache, and the loader has none."""
        self._settings: Settings = facts.settings
        self._options, self._kept, self._counters = options, kept, facts.counters
        self._membership: Membership | None = None
        self._stages: Stages | None = None
        self._job = ""  # whose the samples are, for a state

    def resume(self, saved: dict[str, Any] | None) -> None:
        """See ``Part``."""
        if saved is not None and "job" in saved:
            job_identity.resume(saved["job"])

    def source(self, source: Source, seeds: tuple[int, int], saved: dict[str, Any] | None) -> Source:
        """The groups as the cache answers them, or did when the epoch began."""
        settings, exchanged = self._settings, None if saved is None else saved.get("exchanged")
        if self._options is None and exchanged is None:
            return source
        assert isinstance(source, Groups)
        length = len(settings.dataset)
        known = members(settings.index_sampler, length) if settings.own_batches else None
        done = None if exchanged is None else members_of(exchanged, length)
        if self._options is None:
            job = "" if saved is None else saved.get("job", "")
            numbering = SampleIds(known, None, length, length)
            return ExchangedGroups(source, NoCache(), numbering, self._kept.hits, done, job, strayed=True)
        membership, stages = self._joined(self._options)
        numbering = SampleIds(known, origins(stages, length), length, stages.samples)
        # An epoch begun without exchange goes on without: what was delivered follows from the order.
        exchanges = self._options.exchange and not settings.in_order and known is not None
        if saved is None and exchanges and numbering.is_plain:
            done = np.empty(0, np.int64)
        job, strayed = membership.share.unit.job, exchanged is not None
        return ExchangedGroups(source, membership, numbering, self._kept.hits, done, job, strayed=strayed)

    def _joined(self, options: Cache) -> tuple[Membership, Stages]:
        """The loader's place in the cache, and the stages of the dataset as its workers have it."""
        if self._membership is None or self._stages is None:
            settings = self._settings
            about, self._stages = caching(options, settings.dataset)
            seed = (settings.generator or torch.default_generator).initial_seed()
            about = replace(about, seed=seed, in_order=settings.in_order)
            with held():
                place = self._kept.memberships.take(lambda place: place.is_for(about))
                self._membership = place or Membership(about, self._kept.hits, self._counters)
            self._job = self._membership.share.unit.job
        return self._membership, self._stages

    @property
    def revision(self) -> str | None:
        """The revision of the store behind a network whose rows are kept."""
        return None if self._membership is None else self._membership.caching.revisions[0]

    def making(self, making: Making) -> Making:
        """See ``Part``."""
        if self._membership is None:
            return making
        return StagedMaking(self._membership.caching, self._kept.hits.counts, self._membership.share, making)

    def state(self) -> dict[str, Any]:
        """The job whose samples the cache has, if there is one."""
        return {"job": self._job} if self._job else {}

    def count(self) -> None:
        """See ``Part``."""
        if self._membership is not None:
            self._membership.count()

    def end(self, *, broken: bool) -> None:
        """See ``Part``."""
        membership, self._membership = self._membership, None
        if membership is not None:
            self._kept.memberships.put(membership)
