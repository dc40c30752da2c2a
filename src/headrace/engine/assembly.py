"""From a loader's settings to the run of an epoch."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import torch

from headrace.cache.options import Cache
from headrace.core.options import Loading, OnError, Scheduling, Seeding, Skip
from headrace.engine.caching import EpochCache
from headrace.engine.consumer.arriving import ArrivingGroups
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.cores import free_memory, most_lanes
from headrace.engine.consumer.early import EarlyOrder, is_foreseeable
from headrace.engine.consumer.exchange import ExchangedGroups
from headrace.engine.consumer.inline import InlineRun, InlineStream
from headrace.engine.consumer.maprun import MapRun, Staffing, Succession
from headrace.engine.consumer.order import Groups, Order
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.saved import Facts, compare, facts, pending
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.sources import unpack_random
from headrace.engine.consumer.streamrun import StreamRun
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import RunTrace, new_number
from headrace.engine.course import Course
from headrace.engine.device.accelerator import accelerator
from headrace.engine.device.ahead import AHEAD, Ahead
from headrace.engine.device.pieces import no_slab
from headrace.engine.device.pinning import pinning
from headrace.engine.memory.reservation import Extent
from headrace.engine.memory.slab import Shelf
from headrace.engine.resources import Resources, Run
from headrace.engine.worker import collation
from headrace.engine.worker.brought import Brought, Rows
from headrace.engine.worker.generators import unpacked
from headrace.engine.worker.job import Resume, Task
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.operations import Operations
from headrace.engine.worker.signals import held
from headrace.engine.worker.staged import Staged
from headrace.engine.worker.stateful import load
from headrace.plan.lookahead import Lookahead
from headrace.sched.acts import Arrangement, Terms
from headrace.sched.arrivals import Grouping
from headrace.sched.gauges import Gauges
from headrace.trace.file import Recording


@dataclass(frozen=True, slots=True)
class Settings:
    """A loader's arguments, as they are when an iteration begins."""

    dataset: Any
    index_sampler: Any
    iterable: bool
    batched: bool
    own_batches: bool
    """Batches are cut by ``batch_size``; False when the user's batch sampler composes them."""
    own_order: bool
    """The sampler is the one torch chose for ``shuffle``, not the user's."""
    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    workers: int
    adaptive: bool
    """The number of workers is a start, and follows demand."""
    prefetch: int
    """Batches per worker that are made ahead."""
    looks_ahead: bool
    """That is a start, and follows what slow samples hold up."""
    persistent: bool
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    context: BaseContext | None
    generator: torch.Generator | None
    pin_memory: bool
    device: Any
    on_error: OnError
    loading: Loading
    scheduling: Scheduling
    recording: Recording | None
    cache: Cache | None

    @property
    def arrangement(self) -> Arrangement:
        """How samples become batches."""
        if self.in_order:
            return Arrangement.STRICT
        return Arrangement.FREE if self.batched and self.own_batches and not self.bulk else Arrangement.BATCHES

    @property
    def bulk(self) -> bool:
        """Samples are made a batch at a time."""
        in_bulk = bool(getattr(self.dataset, "__getitems__", None))
        return self.cache is None and in_bulk and Rows.of(self.dataset) is None

    @property
    def extent(self) -> Extent:
        """How much work there can be at once."""
        working = most_lanes() if self.adaptive else self.workers
        most = max(working, self.workers)
        rows = None
        if self.own_batches or self.iterable:
            # A batch sampler may be told another size after the loader was made; it is the one that is asked.
            rows = max(self.batch_size or 1, getattr(self.index_sampler, "batch_size", None) or 1)
        return Extent(most + self.scheduling.spares_for(most), self.prefetch * most, rows)

    @property
    def facts(self) -> Facts:
        """What a state says of the loader it was taken from."""
        return facts(self.dataset, self.index_sampler, self.batch_size, iterable=self.iterable, workers=self.workers)

    @property
    def overlaps(self) -> bool:
        """Whether the next epoch may be begun while the last samples of one are made."""
        wanted = self.persistent and self.scheduling.overlap and self.generator is None and self.cache is None
        return wanted and self.own_order and is_foreseeable(self.index_sampler)


_GROUPINGS = {
    Arrangement.STRICT: Grouping.STRICT,
    Arrangement.BATCHES: Grouping.WHOLE,
    Arrangement.FREE: Grouping.FREE,
}


class IterationAssembly:
    """Makes the runs of one iteration: the first, and with persistent workers the following ones."""

    def __init__(
        self,
        settings: Settings,
        tally: Tally,
        shelf: Shelf,
        course: Course,
        beacon: Beacon,
        reported_length: int | None,
    ) -> None:
        """``reported_length``: what an iterable dataset said of itself, if it was asked."""
        if settings.workers == 0 and settings.timeout != 0:
            msg = "timeout needs workers: with num_workers=0 samples are made in this process and cannot be timed out"
            raise AssertionError(msg)
        if settings.workers > 0 and settings.prefetch <= 0:
            msg = f"prefetch_factor must be positive, but got {settings.prefetch}"
            raise AssertionError(msg)
        self._settings, self.tally, self._course, self.beacon = settings, tally, course, beacon
        self.resources = Resources(shelf, course.fetchers, tally)
        self.persistent, self.generator = settings.persistent, settings.generator
        self._reported = reported_length
        timed = settings.recording is not None
        self._accelerator = accelerator(settings.device, timed=timed) if settings.device is not None else None
        self._pinning = pinning() if settings.pin_memory and self._accelerator is None else None
        self._base_seed: int | None = None
        self._first_run = new_number()
        self._early: tuple[int, MapRun, EarlyOrder] | None = None
        self._foresees = settings.overlaps
        self._saved: dict[str, Any] | None = None
        self._streams: StreamRun | None = None
        self._cache = EpochCache(settings, self.resources, course.memberships)

    def begin(self) -> bool:
        """Put a new epoch's run into ``resources``; whether it goes on from a saved state."""
        settings, resources = self._settings, self.resources
        resources.epoch, saved = self._course.begin()
        self._saved = saved
        if self._take_early(saved):
            return False
        if saved:
            compare(saved, settings.facts)  # again: the dataset or the number of workers may have changed since
        going_on = saved if saved and not saved["finished"] else None
        with self._generator_kept():
            if saved and "generator" in saved and settings.generator is not None:
                settings.generator.set_state(unpack_random(saved["generator"]))
            order = self._drawing(saved, going_on)
        self.tally.epochs += 1
        self.tally.workers = settings.workers
        resources.trace = self._traced()
        run = self._map_run(order, going_on) if order is not None else self._stream_run(going_on)
        resources.run = self._sent(run)
        return going_on is not None

    @contextmanager
    def _generator_kept(self) -> Iterator[None]:
        """An epoch that cannot begin has drawn nothing."""
        own = self._settings.generator or torch.default_generator
        state, seed = own.get_state(), self._base_seed
        try:
            yield
        except BaseException:
            own.set_state(state)
            self._base_seed = seed
            raise

    def _drawing(self, saved: dict[str, Any] | None, going_on: dict[str, Any] | None) -> Order | None:
        """Draw the seed; the order that indices come from, of a map-style dataset."""
        settings = self._settings
        if settings.iterable:
            self._draw_seed(going_on)
            return None
        if going_on is None:
            order = Order(settings.index_sampler)
            self._draw_seed(None)
        else:  # the seed comes first: what was drawn is drawn again from where the generator stood after the seed
            self._draw_seed(going_on)
            order = Order(settings.index_sampler, going_on["order"], pending(going_on, drawn=True))
        if saved and "dataset" in saved:
            load(settings.dataset, saved["dataset"], "dataset")
            self.resources.end_workers()  # they have the dataset as it was
        return order

    def use_up(self) -> None:
        """A batch was delivered, or there was none: the state that the epoch goes on from is used up."""
        if self._saved is not None:
            self._course.use_up(self._saved)
            self._saved = None

    def _sent(self, run: Run) -> Run:
        """The run, its batches on the device or in pinned memory if that was asked for."""
        slab = self.resources.slab
        flat, ahead = (no_slab, 1) if slab is None else (slab.flat, AHEAD)  # without workers, nothing is made early
        if self._accelerator is not None:
            return Ahead(run, self._accelerator, flat, trace=self.resources.trace, ahead=ahead)
        return run if self._pinning is None else Ahead(run, self._pinning, flat, ahead=ahead)

    def _traced(self) -> RunTrace | None:
        """The epoch's record, if there is a trace."""
        settings = self._settings
        if settings.recording is None:
            return None
        facts = {
            "epoch": self.resources.epoch,
            "workers": settings.workers,
            "automatic": settings.adaptive,
            "batch_size": settings.batch_size,
            "prefetch": settings.prefetch,
            "in_order": settings.in_order,
            "arrangement": settings.arrangement.name.lower(),
            "persistent": settings.persistent,
            "device": None if settings.device is None else str(settings.device),
            "torch": False,
        }
        number = self._first_run + self.resources.epoch
        return RunTrace(settings.recording, self.tally, settings.dataset, number, facts)

    def _observer(self, samples: Any = None) -> Observer | None:
        """Who looks at samples that this process makes itself; ``samples``: what makes them, if not the dataset."""
        if (trace := self.resources.trace) is None:
            return None
        observer = Observer(self._settings.dataset, trace.recording, run=trace.number)
        if isinstance(samples, Staged | Brought):
            samples.observer = observer
        return observer

    def _take_early(self, saved: dict[str, Any] | None) -> bool:
        """Go on with what was begun early, if this is the epoch it was begun for."""
        early, self._early = self._early, None
        self.resources.early = None
        if early is None:
            return False
        epoch, run, order = early
        foreseen = saved is None and epoch == self.resources.epoch and run.may_begin
        # Only an order that will be used may be confirmed: that takes the numbers from the generator.
        if not foreseen or not order.confirm(exactly=self._settings.arrangement is not Arrangement.FREE):
            self._foresees = self._foresees and not foreseen  # it would be wrong again, and work done in vain
            run.abandon()
            return False
        run.begin()
        self.tally.epochs += 1
        self.resources.trace = self._traced()
        self.resources.run = self._sent(run)
        return True

    def _follow(self, before: MapRun) -> MapRun | None:
        """The run of the epoch after the one being delivered."""
        if not self._foresees or self.resources.base_seed != self._base_seed:
            return None
        epoch, order = self.resources.epoch + 1, EarlyOrder(self._settings.index_sampler)
        run = self._with_workers(self._groups(order, []), epoch, before)
        self._early, self.resources.early = (epoch, run, order), run
        return run

    def forget_seed(self) -> None:
        """The next epoch begins as if with a new iteration; persistent workers keep theirs."""
        if not self.persistent:
            self._base_seed = None

    def _draw_seed(self, saved: dict[str, Any] | None) -> None:
        """One draw per iteration, as torch makes it; a resumed epoch then uses its old seed."""
        if self._base_seed is None:
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._settings.generator)
            self._base_seed = int(seed.item())
        self.resources.base_seed = saved["base_seed"] if saved else self._base_seed

    def _map_run(self, order: Order, saved: dict[str, Any] | None) -> Run:
        settings = self._settings
        groups = self._cache.groups(self._groups(order, pending(saved) if saved else []), saved)
        if settings.workers > 0:
            return self._with_workers(groups, self.resources.epoch, None)
        seed = (self.resources.base_seed, self.resources.epoch)
        samples, source = self._cache.samples(), groups if settings.cache else self._arriving(groups)
        if self.resources.fetcher is not None:
            samples = Brought(settings.dataset, self.resources.fetcher.arena, None)
        return InlineRun(
            samples,
            settings.collate_fn,
            source,
            batched=settings.batched,
            seed=seed if settings.loading.seeding is Seeding.SAMPLE else None,
            errors=Errors(settings.on_error, self.tally, self._epoch_samples()),
            tally=self.tally,
            observer=self._observer(samples),
        )

    def _groups(self, order: Order, owed: list[list[Any]]) -> Groups:
        regrouped = self._settings.batch_size if self._settings.own_batches else None
        return Groups(order, owed, regrouped, batched=self._settings.batched)

    def _arriving(self, groups: Groups | ExchangedGroups) -> Groups | ExchangedGroups | ArrivingGroups:
        """The groups as they can be worked on: where rows come over a network, once they are here."""
        settings, resources = self._settings, self.resources
        rows = Rows.of(settings.dataset)
        if rows is None or (isinstance(groups, ExchangedGroups) and not rows.staged):
            return groups
        if resources.fetcher is None:
            orders = rows.orders(settings.loading.prefetch, settings.batch_size)
            with held():
                resources.fetcher = resources.fetchers.take(orders, self.tally.network)
        displacement = settings.scheduling.max_displacement or 0
        grouping = _GROUPINGS[settings.arrangement] if settings.workers else Grouping.STRICT
        return ArrivingGroups(groups, resources.fetcher, rows.key, grouping, displacement)

    def _with_workers(self, groups: Groups | ExchangedGroups, epoch: int, after: MapRun | None) -> MapRun:
        settings = self._settings
        standard = settings.batched and collation.is_standard(settings.collate_fn)
        arriving = self._arriving(groups)
        pool, slots = self._started(standard=standard, resumed=[])
        terms = Terms(
            arrangement=settings.arrangement,
            window=self._lookahead(),
            collate=not standard,
            drop_last=settings.drop_last,
            displacement=settings.scheduling.max_displacement or 0,
        )
        stragglers = self._course.stragglers if standard and not settings.bulk else None
        staffing = Staffing(settings.scheduling.spares_for, self._automatic(), stragglers)
        succession = Succession(self.resources.base_seed, epoch, self._follow if settings.overlaps else None, after)
        return MapRun(pool, slots, arriving, terms, staffing, succession, self._service(self._epoch_samples()))

    def _service(self, samples: int | None) -> Service:
        """How the next run treats its user; ``samples``: of an epoch, if that is known."""
        settings = self._settings
        return Service(Errors(settings.on_error, self.tally, samples), self.tally, settings.timeout)

    def _lookahead(self) -> Lookahead:
        settings, course = self._settings, self._course
        if not settings.looks_ahead:
            return Lookahead(settings.prefetch, settings.prefetch)
        course.lookahead = course.lookahead or Lookahead(settings.prefetch)
        return course.lookahead

    def _automatic(self) -> Automatic | None:
        """Who decides how many lanes work, if the user does not."""
        settings, course = self._settings, self._course
        if not settings.adaptive or settings.iterable:
            return None
        if course.automatic is None:
            course.automatic = Automatic(settings.dataset, settings.scheduling.lanes)
        return course.automatic

    def _stream_run(self, saved: dict[str, Any] | None) -> Run:
        settings = self._settings
        resumed = [
            Resume(
                stream["batches"],
                stream.get("state"),
                ended=stream["ended"],
                began=None if stream.get("began") is None else unpacked(stream["began"]),
                random=None if stream.get("random") is None else unpacked(stream["random"]),
            )
            for stream in (saved["streams"] if saved else [])
        ]
        size = settings.batch_size
        if settings.workers == 0:
            return InlineStream(
                settings.dataset,
                settings.collate_fn,
                batch_size=size,
                drop_last=settings.drop_last,
                tally=self.tally,
                resumed=resumed[0] if resumed else Resume(),
                errors=self._service(None).errors,
                observer=self._observer(),
            )
        pool, slots = self._started(standard=False, resumed=resumed)
        left = self._streams.left if self._streams is not None else [None] * settings.workers
        self._streams = StreamRun(
            pool,
            slots,
            resumed or [Resume(began=began) for began in left],
            self._service(None),
            in_order=settings.in_order,
            ahead=settings.prefetch,
            turn=saved["turn"] if saved else 0,
        )
        return self._streams

    def _started(self, *, standard: bool, resumed: list[Resume]) -> tuple[Pool, Any]:
        """The iteration's workers and memory, started if they are not; a resumed stream needs fresh ones."""
        settings, resources = self._settings, self.resources
        if resumed:
            self.resources.end_workers()
        if resources.slab is None:
            limit = settings.loading.memory_limit
            room = free_memory() // 4 if limit is None else limit
            with held():
                resources.slab = resources.shelf.take(room, self._accelerator, settings.extent)
        # Of a map-style dataset, two epochs may be under way: a worker adds the one its samples are for.
        own = resources.epoch if settings.iterable else 0
        gauges = Gauges(resources.slab.memory.words, resources.slab.memory.dims)
        gauges.name_run(self._first_run + own)
        if resources.pool is None:
            task = Task(
                dataset=settings.dataset,
                collate_fn=settings.collate_fn,
                worker_init_fn=settings.worker_init_fn,
                batched=settings.batched,
                iterable=settings.iterable,
                standard_collate=standard,
                batch_size=settings.batch_size,
                drop_last=settings.drop_last,
                seed_samples=settings.loading.seeding is Seeding.SAMPLE and not settings.iterable,
                keep_partial=isinstance(settings.on_error, Skip),
                recording=settings.recording,
                arena=None if resources.fetcher is None else resources.fetcher.arena,
                caching=None if resources.membership is None else resources.membership.caching,
            )
            context = settings.context or torch.multiprocessing.get_context()
            resources.operations = Operations(settings.dataset).names
            with held():
                resources.pool = pool = Pool(
                    resources.slab.memory, settings.workers, context, task, resources.base_seed
                )
            coming = gauges.generation + 1  # the epoch that the run is about to begin
            pool.start(lambda lane: replace(resumed[lane], generation=coming) if resumed else Resume())
        return resources.pool, resources.slab.slots

    def _epoch_samples(self) -> int | None:
        try:
            batches = len(self._settings.index_sampler)
        except TypeError:
            return None
        if not self._settings.batched:
            return batches
        inner = getattr(self._settings.index_sampler, "sampler", None)
        try:
            return len(inner) if inner is not None else None
        except TypeError:
            return None

    def length(self) -> int:
        """Batches in an epoch."""
        return len(self._settings.index_sampler)

    def check_length(self, yielded: int) -> None:
        """Warn when an iterable dataset gives more than it said, as torch does."""
        if self._reported is None or yielded <= self._reported:
            return
        message = (
            f"Length of IterableDataset {self._settings.dataset} was reported to be {self._reported}"
            f"(when accessing len(dataloader)), but {yielded} samples have been fetched. "
        )
        if self._settings.workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker: shard it by torch.utils.data.get_worker_info()."
            )
        warnings.warn(message, stacklevel=3)
