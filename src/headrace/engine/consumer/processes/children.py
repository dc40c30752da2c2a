"""A worker process as the trainer sees it: forked by itself, or by the nursery on its behalf."""

import multiprocessing.process
import os
import select
import signal
import time
import weakref
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from headrace.engine.consumer.processes.nursery import Nursery, NurseryGone


class Child(Protocol):
    """One worker."""

    pid: int
    watch: int
    """A descriptor that is readable once the process has ended."""

    def exit_code(self) -> int | None:
        """Of a process that has ended (negative: the signal); None when it cannot be told. Reaps it."""

    def close(self) -> None:
        """Let go of a process that has ended; idempotent."""


def kill(child: Child) -> None:
    """SIGKILL, whoever its parent is."""
    with suppress(OSError):  # it has ended
        signal.pidfd_send_signal(child.watch, signal.SIGKILL)


_started: "weakref.WeakSet[BaseProcess]" = weakref.WeakSet()


def _disown() -> None:
    """In a process that the user forked: multiprocessing would end these when it exits, as if they were its own."""
    known: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    for process in _started:
        known.discard(process)


os.register_at_fork(after_in_child=_disown)


class Own:
    """Forked or spawned by the trainer through ``multiprocessing``."""

    def __init__(self, process: BaseProcess) -> None:
        """It has been started."""
        assert process.pid is not None
        self.pid, self._process = process.pid, process
        _started.add(process)
        self._code: int | None = None
        try:
            self.watch = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it ended at once, and somebody who waits for every child was faster
            self.watch = os.eventfd(1, os.EFD_CLOEXEC)
        except OSError:
            process.kill()
            process.join()
            raise

    def exit_code(self) -> int | None:
        if self.watch >= 0:
            self._process.join()
            self._code = self._process.exitcode
        return self._code

    def close(self) -> None:
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


class Nursed:
    """Forked by the nursery, whose child it is."""

    def __init__(self, nursery: Nursery, pid: int, watch: int) -> None:
        """``watch``: its pidfd, which it owns from now on."""
        self.pid, self.watch, self._nursery = pid, watch, nursery
        self._code: int | None = None
        self._reaped = False

    def exit_code(self) -> int | None:
        if not self._reaped:
            self._reaped = True
            try:
                self._code = self._nursery.reap(self.pid)
            except NurseryGone:
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
        if self.watch >= 0:
            self.exit_code()
            os.close(self.watch)
            self.watch = -1


def epitaph(child: Child) -> str:
    """How a worker ended that did; reaps it."""
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


def await_end(running: dict[int, Child], seconds: float | None) -> None:
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
