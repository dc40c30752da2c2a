"""The beginning of an epoch: its number, seed, order, the state that it goes on from; and the groups drawn from
that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace.cache.cache_options import Cache
from headrace.caching.exchange import ExchangedGroups, NoCache, SampleIds
from headrace.caching.membership import Membership, caching, origins
from headrace.caching.plans import Plan
from headrace.caching.staged import Staged
from headrace.engine.iteration_state import IterationState
from headrace.engine.ordering.epoch_members import members
from headrace.engine.ordering.order import Order
from headrace.engine.ordering.random_sources import unpack_random
from headrace.engine.ordering.saved import members_of, pending
from headrace.engine.ordering.state_signature import compare
from headrace.engine.settings import Settings
from headrace.engine.step import held
from headrace.engine.worker.generators import unpacked
from headrace.engine.worker.stateful import load
from headrace.fetching.arriving import ArrivingGroups
from headrace.fetching.elsewhere import Elsewhere
from headrace.fetching.fetched import FetchedDataset, Rows
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetcher_main import Orders
from headrace.sampling.planned import PlannedSampler, planned_in
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.groups import Groups
from headrace.sched.resume import Resume
from headrace.sched.source import Source
from headrace.staging.stages import Stages


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of one epoch."""

    epoch: int
    seed: int
    order: Order | None
    """None where the dataset is iterable."""
    saved: dict[str, Any] | None = None
    """The state, where it goes on from the middle."""

    @property
    def streams(self) -> list[Resume]:
        """The position that each worker's stream had reached; empty at an epoch's beginning."""
        return [
            Resume(
                stream["batches"],
                stream.get("state"),
                ended=stream["ended"],
                began=None if stream.get("began") is None else unpacked(stream["began"]),
                random=None if stream.get("random") is None else unpacked(stream["random"]),
            )
            for stream in (self.saved["streams"] if self.saved else [])
        ]


def numbered(resources: IterationState) -> dict[str, Any] | None:
    """Number the epoch that begins now, in ``resources``, and count the batches it had.

    Gives the state that it goes on from, or comes after, if any.
    """
    resources.epoch, saved = resources.kept.begin_epoch()
    resources.goes_on_from = saved
    resources.hand, resources.batches = None, saved["yielded"] if saved and not saved["finished"] else 0
    return saved


def drawn(resources: IterationState, saved: dict[str, Any] | None) -> Beginning:
    """The beginning of the numbered epoch. An epoch that cannot begin has drawn nothing. ``saved``: see
    ``numbered``.
    """
    settings = resources.settings
    if saved:
        compare(settings.facts, saved)  # again: the dataset or the number of workers may have changed since
    going_on = saved if saved and not saved["finished"] else None
    with _kept(settings.generator or torch.default_generator):
        if saved and "generator" in saved and settings.generator is not None:
            settings.generator.set_state(unpack_random(saved["generator"]))
        # The seed comes after a new order, as in torch; before one that goes on, since what was drawn is drawn again
        # from where the generator stood after the seed.
        order = (
            None if settings.iterable or going_on is not None else Order(settings.index_sampler, step=resources.step)
        )
        seed = _seed(settings, resources.base_seed, saved)
        if going_on is not None and not settings.iterable:
            order = Order(settings.index_sampler, going_on["order"], pending(going_on, drawn=True), resources.step)
        if saved and "dataset" in saved and not settings.iterable:
            load(settings.dataset, saved["dataset"], "dataset")
            resources.end_workers()  # they have the dataset as it was
    resources.base_seed = seed
    return Beginning(resources.epoch, seed, order, going_on)


@contextmanager
def _kept(generator: torch.Generator) -> Iterator[None]:
    """A block that, if it fails, leaves the generator in the state it had before."""
    state = generator.get_state()
    try:
        yield
    except BaseException:
        generator.set_state(state)
        raise


def _seed(settings: Settings, drawn: int | None, saved: dict[str, Any] | None) -> int:
    """The epoch's seed: one draw per iteration, as torch makes it; a resumed epoch then uses its old seed.

    Persistent workers have one seed for all their epochs, so one that follows a finished epoch draws none.
    """
    finished = saved is not None and saved["finished"]
    kept = None if saved is None or (finished and not settings.persistent) else int(saved["base_seed"])
    if drawn is None and not (finished and kept is not None):
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=settings.generator).item())
    seed = drawn if kept is None else kept
    assert seed is not None
    return seed


def groups(resources: IterationState, beginning: Beginning) -> Source:
    """The groups that the state owes, then those that the order gives: as the cache answers it, once its rows are
    here.

    Comes before the workers: they are told where the cache and the rows are.
    """
    settings, saved, order = resources.settings, beginning.saved, beginning.order
    assert order is not None
    owed, regrouped = pending(saved) if saved else [], settings.batch_size if settings.own_batches else None
    drawn = _answered(resources, Groups(order, owed, regrouped, batched=settings.batched), saved)
    if settings.cache is not None and settings.workers == 0 and settings.elsewhere is None:
        return drawn  # what makes samples here reads the store itself
    return _arriving(resources, drawn, (beginning.seed, beginning.epoch))


def _answered(resources: IterationState, groups: Groups, saved: dict[str, Any] | None) -> Source:
    """The groups as the cache answers them, if there is one, or was when the epoch began."""
    settings, options = resources.settings, resources.settings.cache
    exchanged = None if saved is None else saved.get("exchanged")
    if options is None and exchanged is None:
        return groups
    length, hits = len(settings.dataset), resources.kept.hits
    known = members(settings.index_sampler, length) if settings.own_batches else None
    done = None if exchanged is None else members_of(exchanged, length)
    if options is None:
        job = "" if saved is None else saved.get("job", "")
        numbering = SampleIds(known, None, length, length)
        return ExchangedGroups(groups, NoCache(), numbering, hits, done, job, strayed=True)
    membership, stages = _joined(resources, options)
    numbering = SampleIds(known, origins(stages, length), length, stages.samples)
    # An epoch begun without exchange goes on without: what was delivered follows from the order.
    if saved is None and known is not None and not settings.in_order and options.exchange and numbering.is_plain:
        done = np.empty(0, np.int64)
    job, strayed = membership.share.unit.job, exchanged is not None
    return ExchangedGroups(groups, membership, numbering, hits, done, job, strayed=strayed)


def _joined(resources: IterationState, options: Cache) -> tuple[Membership, Stages]:
    """The loader's place in the cache, and the stages of the dataset as its workers have it."""
    if resources.membership is None or resources.stages is None:
        settings = resources.settings
        about, resources.stages = caching(options, settings.dataset)
        seed = (settings.generator or torch.default_generator).initial_seed()
        about = replace(about, seed=seed, in_order=settings.in_order)
        with held():
            place = resources.kept.memberships.take(lambda place: place.is_for(about))
            resources.membership = place or Membership(about, resources.kept.hits, resources.counters)
        resources.job = resources.membership.share.unit.job
    return resources.membership, resources.stages


def _arriving(resources: IterationState, groups: Source, seeds: tuple[int, int]) -> Source:
    """The groups as a fetcher brings their rows, where those come over a network."""
    settings = resources.settings
    if settings.elsewhere is not None:
        return _elsewhere(resources, groups, settings.elsewhere, seeds)
    rows = Rows.of(settings.dataset)
    if rows is None or (settings.cache is not None and not rows.staged):
        return groups
    fetcher = _fetching(resources, lambda: rows.orders(settings.loading.prefetch, settings.batch_size))
    fetcher.watch(None if resources.membership is None else resources.membership.caching.revisions[0])
    displacement = settings.scheduling.max_displacement or 0
    arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
    order = planned_in(settings.index_sampler)
    key = partial(_key, rows) if order is None else partial(_marked, order, rows)
    return ArrivingGroups(groups, fetcher, key, arrangement, displacement)


def _elsewhere(resources: IterationState, groups: Source, elsewhere: Elsewhere, seeds: tuple[int, int]) -> Source:
    """The groups, some of them made on other hosts."""
    settings = resources.settings
    told = settings.dataset, settings.worker_init_fn, settings.workers, settings.batch_size or 1
    fetcher = _fetching(resources, lambda: elsewhere.orders(*told))
    displacement = settings.scheduling.max_displacement or 0
    arrangement = settings.arrangement if settings.workers else Arrangement.STRICT
    return elsewhere.groups(groups, fetcher, resources.counters, seeds, arrangement, displacement)


def _fetching(resources: IterationState, told: Callable[[], Orders]) -> Fetcher:
    """The iteration's fetcher, or one that an iteration before it left, or a new one. ``told``: what it is told."""
    if resources.fetcher is None:
        orders = told()
        with held():
            fetcher = resources.kept.fetchers.take(lambda fetcher: fetcher.serves(orders) and fetcher.works())
            resources.fetcher = fetcher or Fetcher(orders, resources.counters.network)
    return resources.fetcher


def _key(rows: Rows, index: Any, _: Plan | None) -> str:
    """The key of a sample's row."""
    return rows.key(index)


def _marked(order: PlannedSampler, rows: Rows, index: Any, _: Plan | None) -> str:
    """The key of a sample, with the block that it is to be read in."""
    return order.marked(index, rows.key(index))


def samples(resources: IterationState) -> Any:
    """The object that makes samples in this process: the dataset or its stages, with any source nearer than its
    store.

    Comes after ``groups``.
    """
    dataset, fetcher, membership = resources.settings.dataset, resources.fetcher, resources.membership
    elsewhere, arena = resources.settings.elsewhere, None if fetcher is None else fetcher.arena
    if membership is not None:
        counts, caching = resources.kept.hits.counts.here(), membership.caching
        make: Any = Staged if elsewhere is None else elsewhere.brings_staged
        return make(dataset, caching, counts, membership.share, arena)
    if arena is None:
        return dataset
    return (FetchedDataset if elsewhere is None else elsewhere.brings)(dataset, arena)
