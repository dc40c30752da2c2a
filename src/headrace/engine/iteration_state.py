"""The resources that an iteration holds, and gives back however it ends."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from headrace.core.options import Seeding, Skip
from headrace.engine.loader_resources import LoaderResources
from headrace.engine.memory.slab import Pins, Slab, Slots
from headrace.engine.ordering.random_sources import pack_random
from headrace.engine.ordering.saved import is_over
from headrace.engine.plugs import EpochRecord, Part, PartFacts, Plug
from headrace.engine.processes.worker_pool import Pool
from headrace.engine.settings import Settings
from headrace.engine.step import IterationStep, held
from headrace.engine.trainer.cores import memory_for_batches
from headrace.engine.trainer.counters import summary
from headrace.engine.worker.maker import Making
from headrace.engine.worker.observer import Observing
from headrace.engine.worker.startup.job import Task
from headrace.sched.epochs.streammachine import StreamMachine
from headrace.sched.gauges import Gauges
from headrace.sched.hand import EpochRun, Hand
from headrace.sched.resume import Resume

PATIENCE_SECONDS = 3.0
"""How long a close waits for a call in another thread to end; that one, or the next, then does what is left to do."""


def new_number() -> int:
    """A number no other run of any process has."""
    return int.from_bytes(os.urandom(7), "little") | 1


class IterationState:
    """The resources that must be ended with an iteration, however it ends, and its position then. Does not know the
    iteration.
    """

    def __init__(self, settings: Settings, kept: LoaderResources, plug: Plug) -> None:
        """Starts nothing yet. ``plug``: gives the features' parts."""
        if settings.workers == 0 and settings.timeout != 0:
            raise AssertionError(
                "timeout needs workers: with num_workers=0 samples are made in this process and cannot be timed out"
            )
        if settings.workers > 0 and settings.prefetch <= 0:
            raise AssertionError(f"prefetch_factor must be positive, but got {settings.prefetch}")
        self.settings, self.kept, self.counters = settings, kept, kept.counters
        self.owner = os.getpid()
        self.pool: Pool | None = None
        self.slab: Slab | None = None
        self._operations: list[str] = []
        self.first_run = new_number()
        """What a trace calls the loader's epoch 0."""
        self.run: EpochRun | None = None
        self.trace: EpochRecord | None = None
        self.streams: StreamMachine | None = None  # of the newest epoch over an iterable dataset
        self.epoch = 0
        self.base_seed: int | None = None
        """Drawn once for all epochs."""
        self.goes_on_from: dict[str, Any] | None = None
        """The state, until a batch of the epoch was delivered."""
        self.hand: Hand[Any] | None = None
        """The last one with a batch."""
        self.batches = 0
        """Batches of this epoch so far, with that one."""
        self.over = False
        """Whether no batch of the epoch is left."""
        self.finished = False
        """Whether the caller was told so: an interrupt may come in place of that."""
        self.closing = False
        """Whether somebody asked for the end of it. It is never begun again then."""
        self.step = IterationStep()
        """Whoever is in it may use everything here; all others only ``close``, and look when it is ``quiet``."""
        self._last: dict[str, Any] = {}
        self._before: Callable[[], dict[str, Any]] | None = None  # while an epoch is being begun, or ended
        self.parts: Sequence[Part] = plug(PartFacts(settings, self.counters, self.step))
        """The features'."""
        kept.watch(self)

    @property
    def yielded(self) -> int:
        """Batches of this epoch that the user has."""
        return self.batches - (self.hand is not None and self.hand.load is not None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A block in which nothing is under way: what may be looked at can be."""
        if os.getpid() != self.owner:
            yield
            return
        try:
            with self.step.quiet():
                yield
        finally:
            if self.step.missed:  # it was dropped meanwhile
                self.step.missed = False
                self.close()

    def standing(self, generator: torch.Generator | None) -> dict[str, Any]:
        """The position of the epoch, for a state, or the ``generator`` after it. Right whenever it is asked for.

        Until the next epoch has really begun, that is where this one stood; until the caller knows that there are no
        more batches, that none is left.
        """
        if self._before is not None and not self.finished:
            return self._before()
        facts = {name: getattr(self, name) for name in ("epoch", "base_seed", "yielded", "finished")}
        if not self.finished:
            return facts | self.progress()
        for part in self.parts:
            facts |= part.state()
        return facts if generator is None else facts | {"generator": pack_random(generator.get_state())}

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """An epoch is begun in the block; if that fails, it was not."""
        self._before = self._stood()
        self.finished = self.over = False
        yield
        self._before = None

    def come_to_end(self) -> None:
        """Note that no batch is left; a state says so, and not yet that the epoch is ``finished``."""
        if not self.over:
            self._before = self._stood()
            self.over = True

    def _stood(self) -> Callable[[], dict[str, Any]]:
        try:
            return partial(dict[str, Any], self.standing(self.settings.generator))
        except Exception as error:  # noqa: BLE001  (of a sampler that cannot say where it stands: for whoever asks)
            return partial(_fail, error)

    def progress(self) -> dict[str, Any]:
        """The position of the epoch now, or when it was left."""
        if self.run is not None:
            self._last = self.run.progress()
        return self._last

    def take_over(self) -> None:
        """Make this state the loader's from now on."""
        saved, settings = self.goes_on_from, self.settings
        if saved and not saved["finished"] and not settings.iterable and is_over(saved, settings.index_sampler):
            self.use_up()  # no batch will do so; a trainer that begins an epoch only to find it over begins another

    def use_up(self) -> None:
        """A batch was delivered, or there was none: the state that the epoch goes on from is used up."""
        if self.goes_on_from is not None:
            self.kept.use_up(self.goes_on_from)
            self.goes_on_from = None

    def workers(self, *, standard: bool, resumed: list[Resume]) -> tuple[Pool, Slots]:
        """Processes and their memory, started if they are not; a resumed stream needs fresh ones.

        ``standard``: see ``Task``.
        """
        settings = self.settings
        if resumed:
            self.end_workers()
        slab = self._memory()
        # Of a map-style dataset, a worker adds the number of the epoch that its samples are for.
        own = self.epoch if settings.iterable else 0
        gauges = Gauges(slab.memory.words, slab.memory.dims)
        gauges.name_run(self.first_run + own)
        if self.pool is None:
            assert self.base_seed is not None
            task = self._task(standard=standard)
            self._operations = [name for part in self.parts for name in part.operations()]
            with held():
                pool = Pool(
                    slab.memory,
                    settings.workers,
                    settings.context,
                    task,
                    self.base_seed,
                    self.counters.story,
                    self.step,
                )
                self.pool = pool
            coming = gauges.generation + 1  # the epoch that the run is about to begin
            pool.start(lambda lane: replace(resumed[lane], generation=coming) if resumed else Resume())
        return self.pool, slab.slots

    @property
    def pins(self) -> Pins | None:
        """Registers memory with the device that batches go to, if there is one."""
        return next(filter(None, (part.pins for part in self.parts)), None)

    def making(self) -> Making:
        """The orders by which samples are made. Comes after the epoch's source.

        The last part of the way is nearest to the dataset, so it comes first here.
        """
        making = Making()
        for part in reversed(self.parts):
            making = part.making(making)
        return making

    def _observing(self) -> Observing:
        observing = Observing()
        for part in self.parts:
            observing = part.observing(observing)
        return observing

    def _memory(self) -> Slab:
        settings = self.settings
        if self.slab is None:
            limit = settings.loading.memory_limit
            room = memory_for_batches() if limit is None else limit
            with held():
                slab = self.kept.slabs.take(lambda slab: slab.serves(self.pins, settings.extent))
                self.slab = slab or Slab(room, self.pins, settings.extent)
        return self.slab

    def _task(self, *, standard: bool) -> Task:
        settings = self.settings
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
            making=self.making(),
            observing=self._observing(),
        )

    def count(self) -> None:
        """Bring what workers know of samples and operations into the counters, and into the story."""
        if self.pool is not None and self.pool.story is not None:
            self.pool.story.gather()
        if self.slab is not None:
            self.counters.sample_bytes, self.counters.operations = summary(self.slab.memory, self._operations)
        for part in self.parts:
            part.count()

    def close(self) -> None:
        """``end`` it, in whatever thread. A call that is under way in another one raises ``LoaderClosed`` soon.

        If it does not end in time, or this comes from a signal handler inside it, what is left is done when it raises,
        or by the next call, which does.
        """
        if os.getpid() != self.owner:
            return
        self.closing = True
        if self.pool is not None:
            self.pool.dismiss()
        for part in self.parts:
            part.dismiss()
        if self.step.wait(PATIENCE_SECONDS):
            try:
                self.end()
            finally:
                self.step.leave()

    def end(self) -> None:
        """End the workers and give the memory back, whatever else raises on the way; idempotent.

        In a process forked from the one that began it, nothing: it all belongs to that one.
        """
        if os.getpid() != self.owner:
            return
        # From the last to the first: what workers know is asked while they are there, and they end before the arena
        # and the cache that they read from, and those before the memory.
        with held(), ExitStack() as closing:
            closing.push(self._give_back)
            for part in self.parts:
                closing.callback(part.end, broken=self.step.broken)
            closing.callback(self.end_workers)
            closing.callback(self.leave)
            closing.callback(self.count)
            if not self.over:
                closing.callback(self.progress)

    def leave(self) -> None:
        """The epoch is over; workers and memory are kept."""
        run, self.run = self.run, None
        if run is not None:
            run.abandon()

    def end_workers(self) -> None:
        """Close the workers of this iteration; the next epoch has others."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def _give_back(self, failed: type[BaseException] | None, *_: object) -> None:
        """The memory; not to be used again where something failed, which may have kept a part of it."""
        slab, self.slab = self.slab, None
        if slab is None:
            return
        if failed is None and not slab.memory.stays and not self.step.broken:
            slab.slots.forget()
            slab.slots.reclaim()
            self.kept.slabs.put(slab)
        else:
            slab.close()


def _fail(error: Exception) -> dict[str, Any]:
    raise error
