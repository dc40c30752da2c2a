"""The source of an epoch: groups of indices as they can be worked on, and what makes samples of them here."""

from typing import Any

import numpy as np

from headrace.cache.options import Cache
from headrace.engine.consumer.drawing import Source
from headrace.engine.consumer.ordering.groups import Groups
from headrace.engine.consumer.ordering.members import members
from headrace.engine.consumer.ordering.order import Order
from headrace.engine.consumer.ordering.saved import members_of, pending
from headrace.engine.consumer.supply.arriving import ArrivingGroups
from headrace.engine.consumer.supply.exchange import ExchangedGroups, Numbering, Unshared
from headrace.engine.consumer.supply.membership import Membership, Memberships, caching, origins
from headrace.engine.resources import Resources
from headrace.engine.settings import Settings
from headrace.engine.staging.stages import Stages
from headrace.engine.worker.brought import Brought, Rows
from headrace.engine.worker.signals import held
from headrace.engine.worker.staged import Staged
from headrace.sched.acts import Arrangement


class EpochSource:
    """For the epochs of one iteration over a map-style dataset, with a cache or without."""

    def __init__(self, settings: Settings, resources: Resources, memberships: Memberships) -> None:
        """``memberships``: the loader's, which outlive the iteration."""
        self._settings, self._resources, self._memberships = settings, resources, memberships
        self._stages: Stages | None = None

    def groups(self, order: Order, saved: dict[str, Any] | None) -> Source:
        """What the state owes, then what the order gives: as the cache answers it, once its rows are here.

        Comes before the workers: they are told where the cache and the rows are.
        """
        settings = self._settings
        owed, regrouped = pending(saved) if saved else [], settings.batch_size if settings.own_batches else None
        groups = self._answered(Groups(order, owed, regrouped, batched=settings.batched), saved)
        if settings.cache is not None and settings.workers == 0:
            return groups  # what makes samples here reads the store itself
        return self._arriving(groups)

    def _answered(self, groups: Groups, saved: dict[str, Any] | None) -> Groups | ExchangedGroups:
        """The groups as the cache answers them, if there is one, or was when the epoch began."""
        settings, options = self._settings, self._settings.cache
        exchanged = None if saved is None else saved.get("exchanged")
        if options is None and exchanged is None:
            return groups
        length, hits = len(settings.dataset), self._memberships.hits
        known = members(settings.index_sampler, length) if settings.own_batches else None
        done = None if exchanged is None else members_of(exchanged, length)
        if options is None:
            job = "" if saved is None else saved.get("job", "")
            return ExchangedGroups(groups, Unshared(), Numbering(known, None, length, length), hits, done, job)
        membership, stages = self._joined(options)
        numbering = Numbering(known, origins(stages, length), length, stages.samples)
        # An epoch begun without exchange goes on without: what was delivered follows from the order.
        if saved is None and known is not None and not settings.in_order and options.exchange and numbering.is_plain:
            done = np.empty(0, np.int64)
        return ExchangedGroups(groups, membership, numbering, hits, done, membership.share.unit.job)

    def _joined(self, options: Cache) -> tuple[Membership, Stages]:
        """The loader's place in the cache, and the stages of the dataset as its workers have it."""
        resources = self._resources
        if resources.membership is None or self._stages is None:
            about, self._stages = caching(options, self._settings.dataset)
            resources.memberships = self._memberships
            with held():
                resources.membership = self._memberships.take(about, resources.tally)
            resources.job = resources.membership.share.unit.job
        return resources.membership, self._stages

    def _arriving(self, groups: Groups | ExchangedGroups) -> Source:
        """The groups as a fetcher brings their rows, where those come over a network."""
        settings, resources = self._settings, self._resources
        rows = Rows.of(settings.dataset)
        if rows is None or (isinstance(groups, ExchangedGroups) and not rows.staged):
            return groups
        if resources.fetcher is None:
            orders = rows.orders(settings.loading.prefetch, settings.batch_size)
            with held():
                resources.fetcher = resources.fetchers.take(orders, resources.tally.network)
        displacement = settings.scheduling.max_displacement or 0
        arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
        return ArrivingGroups(groups, resources.fetcher, rows.key, arrangement, displacement)

    def samples(self) -> Any:
        """What makes samples in this process: the dataset, or its stages, with what is nearer than its store.

        Comes after ``groups``.
        """
        dataset, fetcher, membership = self._settings.dataset, self._resources.fetcher, self._resources.membership
        if fetcher is not None:
            return Brought(dataset, fetcher.arena, None)
        if membership is None:
            return dataset
        return Staged(dataset, membership.caching, self._memberships.hits.counts.here(), membership.share)
