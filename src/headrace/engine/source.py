"""The source of an epoch: groups of indices as they can be worked on, and what makes samples of them here."""

from typing import Any

import numpy as np

from headrace.cache.options import Cache
from headrace.engine.beginning import Beginning
from headrace.engine.consumer.ordering.groups import Groups
from headrace.engine.consumer.ordering.members import members
from headrace.engine.consumer.ordering.saved import members_of, pending
from headrace.engine.consumer.samplework import Source
from headrace.engine.consumer.supply.arriving import ArrivingGroups
from headrace.engine.consumer.supply.exchange import ExchangedGroups, Numbering, Unshared
from headrace.engine.consumer.supply.membership import Membership, caching, origins
from headrace.engine.resources import Resources
from headrace.engine.staging.stages import Stages
from headrace.engine.worker.brought import Brought, Rows
from headrace.engine.worker.signals import held
from headrace.engine.worker.staged import Staged
from headrace.sched.acts import Arrangement


def groups(resources: Resources, beginning: Beginning) -> Source:
    """What the state owes, then what the order gives: as the cache answers it, once its rows are here.

    Comes before the workers: they are told where the cache and the rows are.
    """
    settings, saved, order = resources.settings, beginning.saved, beginning.order
    assert order is not None
    owed, regrouped = pending(saved) if saved else [], settings.batch_size if settings.own_batches else None
    drawn = _answered(resources, Groups(order, owed, regrouped, batched=settings.batched), saved)
    if settings.cache is not None and settings.workers == 0:
        return drawn  # what makes samples here reads the store itself
    return _arriving(resources, drawn)


def _answered(resources: Resources, groups: Groups, saved: dict[str, Any] | None) -> Groups | ExchangedGroups:
    """The groups as the cache answers them, if there is one, or was when the epoch began."""
    settings, options = resources.settings, resources.settings.cache
    exchanged = None if saved is None else saved.get("exchanged")
    if options is None and exchanged is None:
        return groups
    length, hits = len(settings.dataset), resources.kept.memberships.hits
    known = members(settings.index_sampler, length) if settings.own_batches else None
    done = None if exchanged is None else members_of(exchanged, length)
    if options is None:
        job = "" if saved is None else saved.get("job", "")
        return ExchangedGroups(groups, Unshared(), Numbering(known, None, length, length), hits, done, job)
    membership, stages = _joined(resources, options)
    numbering = Numbering(known, origins(stages, length), length, stages.samples)
    # An epoch begun without exchange goes on without: what was delivered follows from the order.
    if saved is None and known is not None and not settings.in_order and options.exchange and numbering.is_plain:
        done = np.empty(0, np.int64)
    return ExchangedGroups(groups, membership, numbering, hits, done, membership.share.unit.job)


def _joined(resources: Resources, options: Cache) -> tuple[Membership, Stages]:
    """The loader's place in the cache, and the stages of the dataset as its workers have it."""
    if resources.membership is None or resources.stages is None:
        about, resources.stages = caching(options, resources.settings.dataset)
        with held():
            resources.membership = resources.kept.memberships.take(about, resources.counters)
        resources.job = resources.membership.share.unit.job
    return resources.membership, resources.stages


def _arriving(resources: Resources, groups: Groups | ExchangedGroups) -> Source:
    """The groups as a fetcher brings their rows, where those come over a network."""
    settings = resources.settings
    rows = Rows.of(settings.dataset)
    if rows is None or (isinstance(groups, ExchangedGroups) and not rows.staged):
        return groups
    if resources.fetcher is None:
        orders = rows.orders(settings.loading.prefetch, settings.batch_size)
        with held():
            resources.fetcher = resources.kept.fetchers.take(orders, resources.counters.network)
    displacement = settings.scheduling.max_displacement or 0
    arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
    return ArrivingGroups(groups, resources.fetcher, rows.key, arrangement, displacement)


def samples(resources: Resources) -> Any:
    """What makes samples in this process: the dataset, or its stages, with what is nearer than its store.

    Comes after ``groups``.
    """
    dataset, fetcher, membership = resources.settings.dataset, resources.fetcher, resources.membership
    if fetcher is not None:
        return Brought(dataset, fetcher.arena, None)
    if membership is None:
        return dataset
    counts = resources.kept.memberships.hits.counts.here()
    return Staged(dataset, membership.caching, counts, membership.share)
