"""The worker processes of a run: started, watched, woken, replaced, ended."""

import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import TracebackType

from headrace.engine.memory.lock import Bell, Lock
from headrace.engine.memory.reservation import Reservation
from headrace.engine.worker import process as worker
from headrace.engine.worker.job import Job, Resume, Task, Wiring
from headrace.sched import words as W

GRACE_SECONDS = 1.0
"""How long a worker may go on with the sample it is making once the loader has ended."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C comes after the block, so that what is done inside is done wholly."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Section:
    """Excludes the workers and this process's other threads. Where an interrupt kept it from ending, ``end`` does."""

    def __init__(self, lock: Lock) -> None:
        """``lock``: the run's."""
        self._lock, self._threads = lock, threading.RLock()

    def __enter__(self) -> None:
        """Wait for both."""
        try:
            self._threads.acquire()
            self._lock.__enter__()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let both go."""
        try:
            self._lock.__exit__(kind, error, trace)
        finally:
            with suppress(RuntimeError):  # an interrupt came before it was taken
                self._threads.release()

    def end(self) -> None:
        """Nothing is locked by this thread any more."""
        self._lock.__exit__(None, None, None)
        with suppress(RuntimeError):
            while True:
                self._threads.release()


class Pool:
    """Workers over one reservation: ``lanes`` to begin with, more when they are added. Not thread-safe."""

    def __init__(self, memory: Reservation, lanes: int, context: BaseContext, task: Task, base_seed: int) -> None:
        """Starts nothing yet."""
        self.memory, self.workers = memory, lanes
        self._context, self._task, self._base_seed = context, task, base_seed
        self._wiring = Wiring(memory, Lock(), Bell())
        self._bells: list[Bell] = []
        self._processes: list[BaseProcess | None] = []
        self._poll = select.poll()
        self._poll.register(self._wiring.consumer.fd, select.POLLIN)
        self._watched: dict[int, int] = {}
        self._dead: set[int] = set()
        self._section = Section(self._wiring.lock)
        self._owner = os.getpid()
        self.closed = False
        self.seasoned = False  # whether its number of lanes was found by an earlier epoch
        memory.words[W.FOREGROUND] = 0

    def start(self, resume: Callable[[int], Resume] = lambda _: Resume()) -> None:
        """Start every worker."""
        for lane in range(self.workers):
            self.add(resume(lane))

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._processes)

    def add(self, resume: Resume) -> None:
        """Start one more worker."""
        lane, dims = self.lanes, self.memory.dims
        for word in range(dims.lane(lane), dims.lane(lane + 1)):
            self.memory.words[word] = 0
        self.memory.words[W.LANES] = max(self.memory.words[W.LANES], lane + 1)
        self._bells.append(Bell())
        self._processes.append(None)
        self.start_one(lane, resume)

    def start_one(self, lane: int, resume: Resume) -> None:
        """Start (or replace) one worker."""
        job = Job(
            lane=lane,
            lanes=self.workers,
            parent=os.getpid(),
            base_seed=self._base_seed,
            wiring=self._wiring,
            bell=self._bells[lane],
            task=replace(self._task),
            resume=resume,
        )
        process = self._context.Process(target=worker.main, args=(job,), daemon=True)  # type: ignore[attr-defined]
        try:
            with uninterrupted():
                process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. The dataset, collate_fn and "
                f"worker_init_fn must be picklable for the start method {self._context.get_start_method()!r}; "
                "define them at module level, or pass multiprocessing_context='fork'.",
                stacklevel=2,
            )
            raise
        self._processes[lane] = process
        watch = os.pidfd_open(process.pid)
        self._watched[watch] = lane
        self._poll.register(watch, select.POLLIN)
        self._dead.discard(lane)

    def section(self) -> Section:
        """The run's critical section, entered by the consumer: ``with pool.section():``."""
        return self._section

    def wait(self, seconds: float | None) -> list[int]:
        """Sleep until a worker rings, dies, or time is up; the lanes that died and were not replaced yet."""
        events = self._poll.poll(0 if self._dead else None if seconds is None else max(0.0, seconds) * 1000)
        for fd, _ in events:
            if fd == self._wiring.consumer.fd:
                self._wiring.consumer.wait()
            else:
                self._dead.add(self._watched[fd])
                self._poll.unregister(fd)
                del self._watched[fd]
                os.close(fd)
        return sorted(self._dead)

    def epitaph(self, lane: int) -> tuple[int, str]:
        """(pid, how it ended) of a worker that died; reaps it."""
        process = self._processes[lane]
        if process is None or process.pid is None:
            return -1, "was never started"
        process.join()
        code = process.exitcode or 0
        if code >= 0:
            return process.pid, f"exited unexpectedly with exit code {code}"
        name = signal.Signals(-code).name
        hint = ""
        if -code == signal.SIGKILL:
            hint = " (often the out-of-memory killer: fewer workers or smaller samples need less memory)"
        if -code == signal.SIGBUS:
            hint = " (often out of memory for shared pages: fewer batches ahead or smaller batches need less)"
        return process.pid, f"is killed by signal: {name}{hint}"

    def pids(self) -> list[int]:
        """Of the workers."""
        return [process.pid for process in self._processes if process is not None and process.pid is not None]

    def ring(self, lanes: Iterable[int]) -> None:
        """Wake these workers."""
        for lane in lanes:
            self._bells[lane].ring()

    def close(self) -> None:
        """End all workers and free the descriptors; idempotent. A worker in mid-sample has a moment to come back."""
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        self.memory.words[W.STOP] = 1
        for bell in self._bells:
            bell.ring()
        running = [process for process in self._processes if process is not None]
        deadline = time.monotonic() + GRACE_SECONDS
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in running:
            if process.is_alive():
                process.kill()
        for process in running:
            process.join()
            process.close()
        for fd in self._watched:
            os.close(fd)
        self.memory.words[W.STOP] = 0
        self._wiring.lock.close()
        self._wiring.consumer.close()
        for bell in self._bells:
            bell.close()
