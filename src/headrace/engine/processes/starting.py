"""Worker processes: who starts them, and each as the trainer sees it.

The trainer starts the first ones, the forker whoever comes later: a process forked while an epoch is under way would
inherit whatever locks other threads hold then. Start methods other than fork need no such care.
"""

import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import pickle
import select
import signal
import sys
import time
import warnings
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.memory.limits import explained
from headrace.engine.memory.lock import Bell
from headrace.engine.processes import forker
from headrace.engine.processes.forker import Forker, ForkerGone
from headrace.engine.step import ALL, held
from headrace.engine.worker.startup import worker_main as worker
from headrace.engine.worker.startup.job import Job, Task, Wiring
from headrace.engine.worker.startup.moment import TaskAtMoment
from headrace.sched.resume import Resume

NEEDED = 5
"""Descriptors: two pipes of multiprocessing's, and one by which the end of a process is seen."""


_started: "weakref.WeakSet[BaseProcess]" = weakref.WeakSet()


def _disown() -> None:
    """Disown processes in one that the user forked: multiprocessing would end these when it exits, as if they were
    its own.
    """
    known: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    for process in _started:
        known.discard(process)


os.register_at_fork(after_in_child=_disown)


class Own:
    """A process forked or spawned by the trainer through ``multiprocessing``."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid, self._process = process.pid, process
        _started.add(process)
        self._code: int | None = None
        try:
            self.watch = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it ended at once, and somebody who waits for every child was faster
            self.watch = os.eventfd(1, os.EFD_CLOEXEC)  # readable for good, as a pidfd is by then
        except OSError:
            process.kill()
            process.join()
            raise

    def exit_code(self) -> int | None:
        """The exit code of a process that has ended (negative: the signal); None when it cannot be told. Reaps it."""
        if self.watch >= 0:
            self._process.join()
            self._code = self._process.exitcode
        return self._code

    def close(self) -> None:
        """Let go of a process that has ended; idempotent."""
        if self.watch < 0:
            return
        if self.exit_code() is None:
            # The trainer ignores SIGCHLD, or waits for every child: the code is lost, and multiprocessing would take
            # the process for alive for ever.
            popen: Any = vars(self._process)["_popen"]
            popen.returncode = 0
            self._process.join()
        self._process.close()
        os.close(self.watch)
        self.watch = -1


class Forked:
    """A process forked by the forker, whose child it is."""

    def __init__(self, forker: Forker, pid: int, watch: int) -> None:
        """``watch``: its pidfd, which it owns from now on."""
        self.pid, self.watch, self._forker = pid, watch, forker
        self._code: int | None = None
        self._reaped = False

    def exit_code(self) -> int | None:
        """The exit code, as that of an ``Own``."""
        if not self._reaped:
            self._reaped = True
            try:
                self._code = self._forker.reap(self.pid)
            except ForkerGone:
                self._code = self._adopted()
        return self._code

    def _adopted(self) -> int | None:
        """An orphan becomes the trainer's child where that is a subreaper, or the first process of a container."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Let go of a process that has ended, as an ``Own`` does."""
        if self.watch >= 0:
            self.exit_code()
            os.close(self.watch)
            self.watch = -1


Child = Own | Forked
"""A worker. ``watch`` is readable once its process has ended."""


def kill(child: Child) -> None:
    """Send SIGKILL to a process, whoever its parent is."""
    with suppress(OSError):  # it has ended
        signal.pidfd_send_signal(child.watch, signal.SIGKILL)


def ending(child: Child) -> str:
    """Description of how a worker ended that did; reaps it."""
    code = child.exit_code()
    if code is None:
        return "exited unexpectedly (how cannot be told: somebody else waited for it)"
    if code >= 0:
        return f"exited unexpectedly with exit code {code}"
    name = signal.Signals(-code).name
    hint = ""
    if -code == signal.SIGKILL:
        hint = " (often the out-of-memory killer: fewer workers or smaller samples need less memory)"
    if -code == signal.SIGBUS:
        hint = " (often out of memory for shared pages: fewer batches ahead or smaller batches need less)"
    return f"is killed by signal: {name}{hint}"


def unimportable(task: Task, method: str) -> str:
    """The reason why processes that import the program anew may end before they make anything; empty where they are
    forked.
    """
    if method == "fork":
        return ""
    program = sys.modules["__main__"]
    path = getattr(program, "__file__", None)
    if path is not None and os.path.exists(path):  # noqa: PTH110  (a text that may be no path)
        return (
            f"A worker that is started with {method!r} runs {path} once more: the program's work has to stand below "
            "if __name__ == '__main__':. "
        )
    parts = {"dataset": type(task.dataset), "collate_fn": task.collate_fn, "worker_init_fn": task.worker_init_fn}
    own = [name for name, part in parts.items() if getattr(part, "__module__", None) == "__main__"]
    what = f"the {' and '.join(own)}" if own else "what it is given"
    return (
        f"A worker that is started with {method!r} cannot find {what}, defined in a notebook or at a prompt: put the "
        "definition into a module of its own and import it, or pass multiprocessing_context='fork'. "
    )


def await_end(running: dict[int, Child], seconds: float | None) -> None:
    """Wait until all have ended, or time is up; those that have are taken out."""
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


class Starter:
    """The starter of one pool's workers. Whom it starts, it does not keep."""

    def __init__(self, context: BaseContext, task: Task, wiring: Wiring, workers: int, base_seed: int) -> None:
        """``workers``: what each is told of their number. Starts nothing yet."""
        self._context, self._task, self._wiring = context, task, wiring
        self._workers, self._base_seed, self._owner = workers, base_seed, os.getpid()
        self._forks = context.get_start_method() == "fork"
        self._told: Any = task if self._forks else None  # what a process gets; made with the first
        self._forker: Forker | None = None
        self._late = False  # a forker is gone, which was what the dataset was when the first workers were started

    @property
    def has_forker(self) -> bool:
        """True if the forker starts whoever comes now."""
        return self._forker is not None

    def start_forker(self, workers: list[int]) -> None:
        """Fork it, where workers are forked and there is none alive; ``workers``: pidfds of those there are."""
        if self._forks and (self._forker is None or self._forker.has_ended):
            with explained("start the process that replaces workers"), held(ALL) as mask:
                self._end_forker()
                self._forker = Forker(self._context, replace(self._job(0, Resume()), mask=frozenset(mask)), workers)

    def make_helpers(self) -> None:
        """Start the helpers that multiprocessing starts by the way, and keeps: they shall not inherit the signals
        held then.
        """
        if not self._forks:
            multiprocessing.resource_tracker.ensure_running()
        if self._context.get_start_method() == "forkserver":
            _preload(worker.__name__)
            multiprocessing.forkserver.ensure_running()

    def signals_held(self) -> AbstractContextManager[set[int]]:
        """A context in which nothing comes between starting a process and noting that."""
        return held(ALL if self._forks else {signal.SIGINT})

    def start(self, lane: int, bell: Bell, resume: Resume, mask: set[int]) -> Child:
        """A worker for this lane, rung by ``bell``. Called where signals are held; ``mask``: those that were before."""
        return self._fork(lane, bell, resume) or self._own(lane, bell, resume, mask)

    def _fork(self, lane: int, bell: Bell, resume: Resume) -> Child | None:
        """A worker forked by the forker; None when there is none."""
        if self._forker is None:
            return None
        try:
            return Forked(self._forker, *self._forker.start(lane, bell.fd, resume))
        except ForkerGone:
            self._end_forker()
            return None

    def _end_forker(self) -> None:
        if self._forker is not None:
            self._late = True
            self._forker.close()
            self._forker = None

    def _own(self, lane: int, bell: Bell, resume: Resume, mask: set[int]) -> Child:
        """A worker forked or spawned from here."""
        _have_descriptors()
        try:
            self._told = self._told or TaskAtMoment(self._task)
            job = replace(self._job(lane, resume), bell=bell, mask=frozenset(mask))
            process = self._context.Process(target=worker.main, args=(job,), daemon=True)  # type: ignore[attr-defined]
            with forker.one_fork if self._forks else nullcontext():
                process.start()
        except (EOFError, ConnectionError) as error:
            raise WorkerDied(
                "multiprocessing's fork server ended while it started a worker, and has said on stderr why"
            ) from error
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
            bell=self._wiring.trainer,
            task=self._told,
            late=self._late,
            resume=resume,
        )

    def dismiss(self) -> None:
        """Dismiss the forker: nobody will be started any more."""
        if self._forker is not None:
            self._forker.dismiss()

    def close(self) -> None:
        """End the forker once its workers have ended; idempotent."""
        if self._forker is not None:
            self._forker.close()


def _preload(module: str) -> None:
    """Has a fork server that starts from now on import ``module`` once; otherwise every worker does, with torch."""
    server: Any = vars(multiprocessing.forkserver)["_forkserver"]
    if module not in server._preload_modules:  # noqa: SLF001  (it can be set in public, and not read)
        multiprocessing.set_forkserver_preload([*server._preload_modules, module])  # noqa: SLF001


def _have_descriptors() -> None:
    """Raise OSError where there are too few descriptors to start a process: multiprocessing would keep those that
    it could have.
    """
    with ExitStack() as spare:
        for _ in range(NEEDED):
            spare.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))
