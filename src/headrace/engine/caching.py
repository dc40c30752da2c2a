"""The cache's part in an epoch: who answers the order, and what makes samples."""

from typing import Any, Protocol

import numpy as np

from headrace.cache.options import Cache
from headrace.engine.consumer.exchange import ExchangedGroups, Numbering, Unshared
from headrace.engine.consumer.members import members
from headrace.engine.consumer.membership import Memberships, caching, origins
from headrace.engine.consumer.order import Groups
from headrace.engine.consumer.saved import members_of
from headrace.engine.resources import Resources
from headrace.engine.staging.stages import Stages
from headrace.engine.worker.signals import held
from headrace.engine.worker.staged import Staged


class Wanted(Protocol):
    """What a loader's settings say."""

    @property
    def cache(self) -> Cache | None: ...

    @property
    def dataset(self) -> Any: ...

    @property
    def index_sampler(self) -> Any: ...

    @property
    def own_batches(self) -> bool: ...

    @property
    def in_order(self) -> bool: ...


class EpochCache:
    """For the epochs of one iteration, with a cache or without."""

    def __init__(self, wanted: Wanted, resources: Resources, memberships: Memberships) -> None:
        """``memberships``: the loader's, which outlive the iteration."""
        self._wanted, self._resources, self._memberships = wanted, resources, memberships
        self._options, self._dataset = wanted.cache, wanted.dataset
        self._stages: Stages | None = None

    def groups(self, groups: Groups, saved: dict[str, Any] | None) -> Groups | ExchangedGroups:
        """The groups as the cache answers them, if there is one, or was when the epoch began."""
        exchanged = None if saved is None else saved.get("exchanged")
        if self._options is None and exchanged is None:
            return groups
        length, epoch, hits = len(self._dataset), self._resources.epoch, self._memberships.hits
        known = members(self._wanted.index_sampler, length) if self._wanted.own_batches else None
        done = None if exchanged is None else members_of(exchanged, length)
        if self._options is None:
            return ExchangedGroups(groups, Unshared(), Numbering(known, None, length, length), epoch, hits, done)
        # An epoch begun without exchange goes on without: what was delivered follows from the order.
        if saved is None and known is not None and not self._wanted.in_order:
            done = np.empty(0, np.int64)
        stages = self._joined(self._options)
        numbering = Numbering(known, origins(stages, length), length, stages.samples)
        assert self._resources.membership is not None
        return ExchangedGroups(groups, self._resources.membership, numbering, epoch, hits, done)

    def _joined(self, options: Cache) -> Stages:
        """The stages of the dataset as its workers have it."""
        resources = self._resources
        if resources.membership is None or self._stages is None:
            about, self._stages = caching(options, self._dataset)
            resources.memberships = self._memberships
            with held():
                resources.membership = self._memberships.take(about, resources.tally)
        return self._stages

    def samples(self) -> Any:
        """What makes samples in this process: the dataset, or its stages with the cache between them."""
        membership = self._resources.membership
        return self._dataset if membership is None else Staged(self._dataset, membership.caching, membership.share)
