"""The worker processes of a run: started, watched, woken, replaced, ended."""

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from types import TracebackType

from headrace.core.errors import LoaderClosed, WorkerDied
from headrace.engine.consumer.children import Child, Nursed, Own, kill
from headrace.engine.consumer.forking import alone
from headrace.engine.consumer.nursery import Nursery, NurseryGone
from headrace.engine.consumer.rollcall import RollCall
from headrace.engine.memory.limits import explained
from headrace.engine.memory.lock import Bell, Lock, Mutex, new_lock
from headrace.engine.memory.reservation import Reservation
from headrace.engine.worker import process as worker
from headrace.engine.worker.job import Job, Task, Wiring
from headrace.engine.worker.signals import ALL, held
from headrace.sched import twin
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.gauges import Gauges
from headrace.sched.resume import Resume
from headrace.sched.roster import Roster

NEEDED = 5
"""Descriptors: two pipes of multiprocessing's, and one by which the end of a process is seen."""
GRACE_SECONDS = 1.0
"""How long a worker may go on with the sample it is making once the loader has ended."""


class Section:
    """Excludes the workers and this process's other threads. Where an interrupt kept it from ending, ``end`` does."""

    def __init__(self, lock: Lock | Mutex) -> None:
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
    """Workers over one reservation: ``lanes`` to begin with, more when they are added. Not thread-safe.

    The first ones are forked by the caller of ``start``, later ones by the nursery: a process forked while an epoch is
    under way would inherit whatever locks other threads hold then. Other start methods need no such care.
    """

    def __init__(self, memory: Reservation, lanes: int, context: BaseContext, task: Task, base_seed: int) -> None:
        """Starts nothing yet."""
        self.memory, self.workers = memory, lanes
        self._context, self._task, self._base_seed = context, task, base_seed
        self._forks = context.get_start_method() == "fork"
        with explained("make a lock and a bell for the workers"):
            lock = new_lock(memory)
            try:
                self._wiring = Wiring(memory, lock, Bell())
            except OSError:
                lock.close()
                raise
        self._bells: list[Bell] = []
        self._children: list[Child | None] = []
        self._nursery: Nursery | None = None
        self._roster = Roster(memory.words, memory.dims)
        self._roll = RollCall(self._roster)
        self._poll = select.poll()
        self._poll.register(self._wiring.consumer.fd, select.POLLIN)
        self._watched: dict[int, int] = {}
        self._dead: set[int] = set()
        self._section = Section(self._wiring.lock)
        self._owner = os.getpid()
        self.closed = self._dismissed = False
        self._rope = threading.Lock()  # of the consumer's bell: nobody rings what is being closed
        self._roster.open()

    def start(self, resume: Callable[[int], Resume] = lambda _: Resume()) -> None:
        """Start every worker, and the nursery."""
        for lane in range(self.workers):
            self.add(resume(lane))
        if self._forks:
            with explained("start the process that replaces workers"), held(ALL) as mask:
                self._nursery = Nursery(self._context, replace(self._job(0, Resume()), mask=frozenset(mask)))

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._children)

    def add(self, resume: Resume) -> None:
        """Start one more worker."""
        self._make_helpers()
        with self._held() as mask:
            lane = self.lanes
            with explained(f"make a bell for worker {lane}"):
                bell = Bell()
            self._roster.add(lane)
            self._bells.append(bell)
            self._children.append(None)
            try:
                self._start(lane, resume, mask)
            except BaseException:
                if self._children[lane] is None:
                    self._children.pop()
                    self._bells.pop().close()
                raise

    def restart(self, lane: int, resume: Resume) -> None:
        """Start a worker in place of one that died. Until that has been done, ``wait`` calls that one dead."""
        self._make_helpers()
        with self._held() as mask:
            self._start(lane, resume, mask)

    def _held(self) -> AbstractContextManager[set[int]]:
        """Nothing comes between starting a process and noting that."""
        return held(ALL if self._forks else {signal.SIGINT})

    def _start(self, lane: int, resume: Resume, mask: set[int]) -> None:
        nursed = self._nursery is not None
        with explained(f"start worker {lane}"):
            child = self._nurse(lane, resume) or self._own(lane, resume, mask)
        before, self._children[lane] = self._children[lane], child
        self._dead.discard(lane)
        self._roll.started(lane, child.pid)
        self._watched[child.watch] = lane
        self._poll.register(child.watch, select.POLLIN)
        if before is not None:
            before.close()
        if nursed and self._nursery is None:
            warnings.warn(
                "the process that replaces workers is gone (often the out-of-memory killer): until the next iter() "
                "they are forked from this one, and inherit the locks that other threads hold at that moment",
                RuntimeWarning,
                stacklevel=3,
            )

    def _make_helpers(self) -> None:
        """Those that multiprocessing starts by the way, and keeps, shall not inherit the signals held then."""
        if not self._forks:
            multiprocessing.resource_tracker.ensure_running()
        if self._context.get_start_method() == "forkserver":
            multiprocessing.forkserver.ensure_running()

    def _nurse(self, lane: int, resume: Resume) -> Child | None:
        """A worker forked by the nursery; None when there is none."""
        if self._nursery is None:
            return None
        try:
            return Nursed(self._nursery, *self._nursery.start(lane, self._bells[lane].fd, resume))
        except NurseryGone:
            self._nursery.close()
            self._nursery = None
            return None

    def _own(self, lane: int, resume: Resume, mask: set[int]) -> Child:
        """A worker forked or spawned from here."""
        job = replace(self._job(lane, resume), bell=self._bells[lane], mask=frozenset(mask))
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
                stacklevel=3,
            )
            raise
        return Own(process)

    def _job(self, lane: int, resume: Resume) -> Job:
        return Job(
            lane=lane,
            lanes=self.workers,
            parent=self._owner,
            base_seed=self._base_seed,
            wiring=self._wiring,
            bell=self._wiring.consumer,
            task=replace(self._task),
            resume=resume,
        )

    def ledger(self) -> ConsumerLedger:
        """The consumer's view of the ledger, for one epoch."""
        if isinstance(self._wiring.lock, Mutex):
            return twin.NativeConsumer(self.memory.words, self.memory.dims, self._section)
        return ConsumerLedger(self.memory.words, self.memory.dims, self._section)

    def gauges(self) -> Gauges:
        """What the workers measure."""
        return Gauges(self.memory.words, self.memory.dims)

    def section(self) -> Section:
        """The run's critical section, entered by the consumer: ``with pool.section():``."""
        return self._section

    def dismiss(self) -> None:
        """Whoever waits, or will, raises ``LoaderClosed``. May be called by any thread, at any time."""
        self._dismissed = True
        with self._rope:
            if self._wiring.consumer.fd >= 0:
                self._wiring.consumer.ring()

    def wait(self, seconds: float | None, besides: tuple[int, int] = (-1, 0)) -> list[int]:
        """Sleep until a worker rings, dies, time is up, or sooner; the lanes that died, until they are replaced.

        ``besides``: a descriptor and events of it that end the sleep too.
        """
        if besides[0] >= 0:
            self._poll.register(*besides)
        patience = self._roll.seconds() if seconds is None else min(max(0.0, seconds), self._roll.seconds())
        events = self._poll.poll(0 if self._dead else 1000 * patience)
        for fd, _ in events:
            if fd == self._wiring.consumer.fd:
                self._wiring.consumer.wait()
            elif fd in self._watched:
                self._dead.add(self._watched[fd])
                self._poll.unregister(fd)
                del self._watched[fd]
            else:
                self._poll.unregister(fd)  # ``besides``, or one that an interrupt left behind
        if self._dismissed:
            raise LoaderClosed
        if not events:
            self._roll.call()
        return sorted(self._dead)

    def late(self) -> list[str]:
        """Of each worker that is not at work yet: which, and where it is."""
        return self._roll.late()

    def epitaph(self, lane: int) -> tuple[int, str]:
        """(pid, how it ended) of a worker that died; reaps it."""
        child = self._children[lane]
        if child is None:
            return -1, "was never started"
        code = child.exit_code()
        if code is None:
            return child.pid, "exited unexpectedly (how cannot be told: somebody else waited for it)"
        if code >= 0:
            return child.pid, f"exited unexpectedly with exit code {code}"
        name = signal.Signals(-code).name
        hint = ""
        if -code == signal.SIGKILL:
            hint = " (often the out-of-memory killer: fewer workers or smaller samples need less memory)"
        if -code == signal.SIGBUS:
            hint = " (often out of memory for shared pages: fewer batches ahead or smaller batches need less)"
        return child.pid, f"is killed by signal: {name}{hint}"

    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._children if child is not None]

    def ring(self, lanes: Iterable[int]) -> None:
        """Wake these workers."""
        for lane in lanes:
            self._bells[lane].ring()

    def close(self) -> None:
        """End all workers and free the descriptors; idempotent. A worker in mid-sample has a moment to come back."""
        if self.closed or os.getpid() != self._owner:
            return
        with held():
            self._end()

    def _end(self) -> None:
        self._roster.stop()
        self.ring(lane for lane, bell in enumerate(self._bells) if bell.fd >= 0)
        running = {child.watch: child for child in self._children if child is not None and child.watch in self._watched}
        _await(running, GRACE_SECONDS)
        for child in running.values():
            kill(child)
        _await(running, None)
        for child in filter(None, self._children):
            child.close()
        if self._nursery is not None:
            self._nursery.close()
        self._roster.stopped()
        self._wiring.lock.close()
        with self._rope:
            self._wiring.consumer.close()
        for bell in self._bells:
            bell.close()
        self.closed = True


def _have_descriptors() -> None:
    """OSError where there are too few to start a process: multiprocessing would keep those that it could have."""
    with ExitStack() as spare:
        for _ in range(NEEDED):
            spare.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))


def _await(running: dict[int, Child], seconds: float | None) -> None:
    """Until all have ended, or time is up; those that have are taken out."""
    poll = select.poll()
    for watch in running:
        poll.register(watch, select.POLLIN)
    deadline = None if seconds is None else time.monotonic() + seconds
    while running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ended = poll.poll(left)
        if not ended and left is not None and left <= 0:
            return
        for watch, _ in ended:
            poll.unregister(watch)
            del running[watch]
