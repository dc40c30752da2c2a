"""Who works for an iteration: its processes and their memory, how many of them, and how far ahead."""

from dataclasses import replace

import torch

from headrace.core.options import Seeding, Skip
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.cores import free_memory
from headrace.engine.consumer.drawing import Staffing
from headrace.engine.consumer.processes.pool import Pool
from headrace.engine.course import Course
from headrace.engine.device.accelerator import Accelerator
from headrace.engine.memory.slab import Slab
from headrace.engine.memory.slots import Slots
from headrace.engine.resources import Resources
from headrace.engine.settings import Settings
from headrace.engine.worker.job import Task
from headrace.engine.worker.operations import Operations
from headrace.engine.worker.signals import held
from headrace.plan.lookahead import Lookahead
from headrace.sched.gauges import Gauges
from headrace.sched.resume import Resume


class Workforce:
    """Started with the first epoch that needs it; what it holds is in ``resources``, which end it."""

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        course: Course,
        accelerator: Accelerator | None,
        first_run: int,
    ) -> None:
        """``accelerator``: who must know the memory, if anybody; ``first_run``: what a trace calls the first epoch."""
        self._settings, self._resources, self._course = settings, resources, course
        self._accelerator, self._first_run = accelerator, first_run

    def started(self, *, standard: bool, resumed: list[Resume]) -> tuple[Pool, Slots]:
        """The iteration's workers and memory, started if they are not; a resumed stream needs fresh ones."""
        settings, resources = self._settings, self._resources
        if resumed:
            resources.end_workers()
        slab = self._slab()
        # Of a map-style dataset, two epochs may be under way: a worker adds the one its samples are for.
        own = resources.epoch if settings.iterable else 0
        gauges = Gauges(slab.memory.words, slab.memory.dims)
        gauges.name_run(self._first_run + own)
        if resources.pool is None:
            task = self._task(standard=standard)
            context = settings.context or torch.multiprocessing.get_context()
            resources.operations = Operations(settings.dataset).names
            with held():
                pool = Pool(slab.memory, settings.workers, context, task, resources.base_seed, resources.tally.story)
                resources.pool = pool
            coming = gauges.generation + 1  # the epoch that the run is about to begin
            pool.start(lambda lane: replace(resumed[lane], generation=coming) if resumed else Resume())
        return resources.pool, slab.slots

    def _slab(self) -> Slab:
        settings, resources = self._settings, self._resources
        if resources.slab is None:
            limit = settings.loading.memory_limit
            room = free_memory() // 4 if limit is None else limit
            with held():
                resources.slab = resources.shelf.take(room, self._accelerator, settings.extent)
        return resources.slab

    def _task(self, *, standard: bool) -> Task:
        settings, resources = self._settings, self._resources
        return Task(
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

    def staffing(self, *, standard: bool) -> Staffing:
        """Who works on an epoch over a map-style dataset."""
        settings, course = self._settings, self._course
        stragglers = course.stragglers if standard and not settings.bulk else None
        return Staffing(settings.scheduling.spares_for, self._automatic(), stragglers)

    def _automatic(self) -> Automatic | None:
        """Who decides how many lanes work, if the user does not."""
        settings, course = self._settings, self._course
        if not settings.adaptive:
            return None
        if course.automatic is None:
            course.automatic = Automatic(settings.dataset, settings.scheduling.lanes)
        return course.automatic

    def lookahead(self) -> Lookahead:
        """How many batches to have made ahead: as the user says, or as the loader's epochs so far have shown."""
        settings, course = self._settings, self._course
        if not settings.looks_ahead:
            return Lookahead(settings.prefetch, settings.prefetch)
        course.lookahead = course.lookahead or Lookahead(settings.prefetch)
        return course.lookahead
