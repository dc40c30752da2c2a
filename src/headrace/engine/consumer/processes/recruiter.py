"""Who starts the worker processes of a pool: the trainer the first ones, the nursery whoever comes later.

A process forked while an epoch is under way would inherit whatever locks other threads hold then. Start methods other
than fork need no such care.
"""

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import warnings
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from multiprocessing.context import BaseContext

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.processes.children import Child, Nursed, Own
from headrace.engine.consumer.processes.forking import alone
from headrace.engine.consumer.processes.nursery import Nursery, NurseryGone
from headrace.engine.memory.limits import explained
from headrace.engine.memory.lock import Bell
from headrace.engine.worker import process as worker
from headrace.engine.worker.job import Job, Task, Wiring
from headrace.engine.worker.signals import ALL, held
from headrace.sched.resume import Resume

NEEDED = 5
"""Descriptors: two pipes of multiprocessing's, and one by which the end of a process is seen."""


class Recruiter:
    """One pool's. Whom it starts, it does not keep."""

    def __init__(self, context: BaseContext, task: Task, wiring: Wiring, workers: int, base_seed: int) -> None:
        """``workers``: what each is told of their number. Starts nothing yet."""
        self._context, self._task, self._wiring = context, task, wiring
        self._workers, self._base_seed, self._owner = workers, base_seed, os.getpid()
        self._forks = context.get_start_method() == "fork"
        self._nursery: Nursery | None = None

    @property
    def has_nursery(self) -> bool:
        """Whether the nursery starts whoever comes now."""
        return self._nursery is not None

    def open_nursery(self, workers: list[int]) -> None:
        """Fork it, where workers are forked and there is none alive; ``workers``: pidfds of those there are."""
        if self._forks and (self._nursery is None or self._nursery.has_ended):
            with explained("start the process that replaces workers"), held(ALL) as mask:
                self._abolish()
                self._nursery = Nursery(self._context, replace(self._job(0, Resume()), mask=frozenset(mask)), workers)

    def make_helpers(self) -> None:
        """Those that multiprocessing starts by the way, and keeps, shall not inherit the signals held then."""
        if not self._forks:
            multiprocessing.resource_tracker.ensure_running()
        if self._context.get_start_method() == "forkserver":
            multiprocessing.forkserver.ensure_running()

    def signals_held(self) -> AbstractContextManager[set[int]]:
        """Nothing comes between starting a process and noting that."""
        return held(ALL if self._forks else {signal.SIGINT})

    def start(self, lane: int, bell: Bell, resume: Resume, mask: set[int]) -> Child:
        """A worker for this lane, rung by ``bell``. Called where signals are held; ``mask``: those that were before."""
        return self._nurse(lane, bell, resume) or self._own(lane, bell, resume, mask)

    def _nurse(self, lane: int, bell: Bell, resume: Resume) -> Child | None:
        """A worker forked by the nursery; None when there is none."""
        if self._nursery is None:
            return None
        try:
            return Nursed(self._nursery, *self._nursery.start(lane, bell.fd, resume))
        except NurseryGone:
            self._abolish()
            return None

    def _abolish(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _own(self, lane: int, bell: Bell, resume: Resume, mask: set[int]) -> Child:
        """A worker forked or spawned from here."""
        job = replace(self._job(lane, resume), bell=bell, mask=frozenset(mask))
        process = self._context.Process(target=worker.main, args=(job,), daemon=True)  # type: ignore[attr-defined]
        _have_descriptors()
        try:
            with alone() if self._forks else nullcontext():
                process.start()
        except (EOFError, ConnectionError) as error:
            msg = "multiprocessing's fork server ended while it started a worker, and has said on stderr why"
            raise WorkerDied(msg) from error
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. The dataset, collate_fn and "
                f"worker_init_fn must be picklable for the start method {self._context.get_start_method()!r}; "
                "define them at module level, or pass multiprocessing_context='fork'.",
                stacklevel=4,
            )
            raise
        return Own(process)

    def _job(self, lane: int, resume: Resume) -> Job:
        return Job(
            lane=lane,
            lanes=self._workers,
            parent=self._owner,
            base_seed=self._base_seed,
            wiring=self._wiring,
            bell=self._wiring.consumer,
            task=replace(self._task),
            resume=resume,
        )

    def dismiss(self) -> None:
        """Nobody will be started any more."""
        if self._nursery is not None:
            self._nursery.dismiss()

    def close(self) -> None:
        """End the nursery once its workers have ended; idempotent."""
        if self._nursery is not None:
            self._nursery.close()


def _have_descriptors() -> None:
    """OSError where there are too few to start a process: multiprocessing would keep those that it could have."""
    with ExitStack() as spare:
        for _ in range(NEEDED):
            spare.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))
