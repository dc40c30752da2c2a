"""From a loader's settings to the run of an epoch."""

import warnings
from typing import Any

import torch

from headrace.core.options import Seeding
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.drawing import Drawing, Source, Succession
from headrace.engine.consumer.inline import InlineRun
from headrace.engine.consumer.inlinestream import InlineStream
from headrace.engine.consumer.maprun import MapRun
from headrace.engine.consumer.ordering.early import EarlyOrder
from headrace.engine.consumer.ordering.order import Order
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.streamrun import StreamRun
from headrace.engine.consumer.tally import Errors, LoaderTally
from headrace.engine.consumer.tracing import RunTrace, new_number
from headrace.engine.course import Course
from headrace.engine.device.accelerator import accelerator
from headrace.engine.device.ahead import AHEAD, Ahead
from headrace.engine.device.pieces import no_slab
from headrace.engine.device.pinning import pinning
from headrace.engine.device.renderers import renderer
from headrace.engine.device.rendering import Renderer, Rendering
from headrace.engine.memory.slab import Shelf
from headrace.engine.outset import Outset, streams
from headrace.engine.pixels.prepared import of
from headrace.engine.resources import Resources, Run
from headrace.engine.settings import Settings
from headrace.engine.source import EpochSource
from headrace.engine.worker import collation
from headrace.engine.worker.brought import Brought
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.staged import Staged
from headrace.engine.workforce import Workforce
from headrace.sched.acts import Arrangement, Terms
from headrace.sched.resume import Resume


class IterationAssembly:
    """Makes the runs of one iteration: the first, and with persistent workers the following ones."""

    def __init__(
        self,
        settings: Settings,
        tally: LoaderTally,
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
        self._settings, self.tally, self.beacon = settings, tally, beacon
        self.resources = Resources(shelf, course.fetchers, tally)
        self.persistent, self.generator = settings.persistent, settings.generator
        self._reported = reported_length
        timed = settings.recording is not None
        self._accelerator = accelerator(settings.device, timed=timed) if settings.device is not None else None
        self._pinning = pinning() if settings.pin_memory and self._accelerator is None else None
        self._renderer = renderer(of(settings.dataset), torch.device(settings.device)) if settings.on_device else None
        self._rendering: Rendering | None = None
        self._first_run = new_number()
        self._early: tuple[int, MapRun, EarlyOrder] | None = None
        self._foresees = settings.overlaps
        self._streams: StreamRun | None = None
        self.outset = Outset(settings, self.resources, course)
        self._source = EpochSource(settings, self.resources, course.memberships)
        self._workforce = Workforce(settings, self.resources, course, self._accelerator, self._first_run)

    def begin(self) -> None:
        """Put a new epoch's run into ``resources``."""
        saved = self.outset.number()
        if not self._take_early(saved):
            self._draw(saved)
        if self.resources.pool is not None:
            self.resources.pool.open_nursery()  # not before: the workers have something to do while it is forked
        if self._rendering is not None:
            self._rendering.start()

    def _draw(self, saved: dict[str, Any] | None) -> None:
        """Begin an epoch that was not begun early."""
        resources = self.resources
        going_on, order = self.outset.draw(saved)
        self.tally.epochs += 1
        self.tally.workers = self._settings.workers
        resources.trace = self._traced()
        if going_on is not None and self._settings.scheduling.story:
            owed = [index for group in going_on.get("pending", []) for index in group]
            why = f"epoch {resources.epoch} goes on after {going_on['yielded']} batches; it was drawn and not delivered"
            self.tally.story.tell("loader", "resumed", why, owed)
        run = self._map_run(order, going_on) if order is not None else self._stream_run(going_on)
        resources.run = self._sent(run)

    def _sent(self, run: Run) -> Run:
        """The run, its batches on the device or in pinned memory if that was asked for."""
        slab = self.resources.slab
        flat, ahead = (no_slab, 1) if slab is None else (slab.flat, AHEAD)  # without workers, nothing is made early
        if self._renderer is not None:
            self._rendering = self._rendered(run, self._renderer)
            return Ahead(run, self._rendering, flat, trace=self.resources.trace, ahead=ahead)
        if self._accelerator is not None:
            return Ahead(run, self._accelerator, flat, trace=self.resources.trace, ahead=ahead)
        return run if self._pinning is None else Ahead(run, self._pinning, flat, ahead=ahead)

    def _rendered(self, run: Any, renderer: Renderer) -> Rendering:
        """What makes batches of the pictures that the run brings."""
        return Rendering(of(self._settings.dataset), renderer, run.errors, self.tally)

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
            "on_device": settings.on_device,
            "torch": False,
        }
        number = self._first_run + self.resources.epoch
        return RunTrace(settings.recording, self.tally, settings.given, number, facts)

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

    def _follow(self, before: Drawing) -> MapRun | None:
        """The run of the epoch after the one being delivered."""
        if not self._foresees:
            return None
        epoch, order = self.resources.epoch + 1, EarlyOrder(self._settings.index_sampler)
        run = self._with_workers(self._source.groups(order, None), epoch, before)
        self._early, self.resources.early = (epoch, run, order), run
        return run

    def _map_run(self, order: Order, saved: dict[str, Any] | None) -> Run:
        settings = self._settings
        groups = self._source.groups(order, saved)
        if settings.workers > 0:
            return self._with_workers(groups, self.resources.epoch, None)
        seed = (self.resources.base_seed, self.resources.epoch)
        samples = self._source.samples()
        return InlineRun(
            samples,
            settings.collate_fn,
            groups,
            batched=settings.batched,
            seed=seed if settings.loading.seeding is Seeding.SAMPLE else None,
            errors=Errors(settings.on_error, self.tally, settings.samples),
            tally=self.tally,
            observer=self._observer(samples),
        )

    def _with_workers(self, groups: Source, epoch: int, after: Drawing | None) -> MapRun:
        settings = self._settings
        standard = settings.batched and collation.is_standard(settings.collate_fn)
        pool, slots = self._workforce.started(standard=standard, resumed=[])
        terms = Terms(
            arrangement=settings.arrangement,
            window=self._workforce.lookahead(),
            collate=not standard,
            drop_last=settings.drop_last,
            displacement=settings.scheduling.max_displacement or 0,
        )
        staffing = self._workforce.staffing(standard=standard)
        succession = Succession(self.resources.base_seed, epoch, self._follow if settings.overlaps else None, after)
        return MapRun(pool, slots, groups, terms, staffing, succession, self._service(settings.samples))

    def _service(self, samples: int | None) -> Service:
        """How the next run treats its user; ``samples``: of an epoch, if that is known."""
        settings = self._settings
        return Service(Errors(settings.on_error, self.tally, samples), self.tally, settings.timeout)

    def _stream_run(self, saved: dict[str, Any] | None) -> Run:
        settings, resumed = self._settings, streams(saved)
        if settings.workers == 0:
            return InlineStream(
                settings.dataset,
                settings.collate_fn,
                batch_size=settings.batch_size,
                drop_last=settings.drop_last,
                tally=self.tally,
                resumed=resumed[0] if resumed else Resume(),
                errors=self._service(None).errors,
                observer=self._observer(),
            )
        pool, slots = self._workforce.started(standard=False, resumed=resumed)
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
