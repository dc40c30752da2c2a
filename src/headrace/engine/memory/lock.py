"""The one lock of a run, and how processes of a run wake each other.

Whichever it is, the kernel frees it when its holder dies, so a killed worker wedges nobody: a robust mutex among the
ledger's words where the native module was built, else a record lock. That one excludes processes, not threads: in one
process, one thread may use it at a time.
"""

import fcntl
import os
import threading
from multiprocessing import reduction
from typing import Any

from headrace.engine.memory.reservation import Reservation
from headrace.sched import native_ledger


class Descriptor:
    """A file descriptor that travels to a starting process."""

    def __init__(self, fd: int) -> None:
        """Takes ownership of ``fd``."""
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        """Duplicated for the child."""
        return _received, (type(self), reduction.DupFd(self.fd))


def _received(kind: "type[Lock | Bell]", handle: Any) -> Descriptor:
    return kind(handle.detach())


class Lock(Descriptor):
    """``with lock:`` excludes every other process of the run; about 1.5 microseconds when nobody else wants it.

    Entered again, inside the block, by the same process (a signal handler, a finalizer), it is held until the outer
    block leaves.
    """

    _depth = _holder = 0

    def __init__(self, fd: int | None = None) -> None:
        """A file of its own, so that closing any other descriptor cannot release it; or ``fd``, made by another."""
        super().__init__(os.memfd_create("headrace-lock", os.MFD_CLOEXEC) if fd is None else fd)

    def __enter__(self) -> None:
        self._depth = self.depth + 1
        if self._depth == 1:
            self._holder = os.getpid()
            fcntl.lockf(self.fd, fcntl.LOCK_EX)

    @property
    def depth(self) -> int:
        """The number of times this process has entered the lock; 0 in a forked child."""
        return self._depth if self._holder == os.getpid() else 0

    def __exit__(self, *_: object) -> None:
        """Let it go, where this leaves the outermost block; where it is not held, nothing happens."""
        self._depth = max(0, self.depth - 1)
        if self._depth == 0:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)


class Mutex:
    """``with lock:`` as above, for threads too; about a microsecond, without a system call while nobody waits.

    The ledger's native operations take it themselves. Entered again by the thread that holds it, it is held until the
    outer block leaves. Leaving what this thread does not hold changes nothing.
    """

    def __init__(self, memory: Reservation) -> None:
        """Use the mutex among the memory's words. Call ``make`` before any other process uses it."""
        self._memory, self._mutex = memory, native_ledger.mutex(memory.words)

    def make(self) -> None:
        """Free, whatever became of it. No process of an earlier run is left."""
        self._mutex.make()

    def __enter__(self) -> None:
        self._mutex.__enter__()

    def __exit__(self, *_: object) -> None:
        """Let it go, where this leaves the outermost block."""
        self._mutex.__exit__()

    def close(self) -> None:
        """Give the mutex up for good, and let go of it if a second Ctrl-C kept this thread from it.

        The C library keeps a list of those that a thread holds, through the mutexes themselves: memory with one that is
        held must not be unmapped, or the thread writes to whatever lies there next. So if another thread holds it, the
        memory stays.
        """
        if not self._mutex.leave():
            self._memory.stay()

    def __reduce__(self) -> tuple[Any, ...]:
        """Give what finds the mutex again in the same memory."""
        return Mutex, (self._memory,)


def new_lock(memory: Reservation) -> Lock | Mutex:
    """A run's."""
    if native_ledger.module is None:
        return Lock()
    mutex = Mutex(memory)
    mutex.make()
    return mutex


class Section:
    """The trainer's: excludes the workers and this process's other threads."""

    def __init__(self, lock: Lock | Mutex) -> None:
        self._lock, self._threads = lock, threading.RLock()

    def __enter__(self) -> None:
        # Threads first: a record lock is the process's, and would let another thread of it in.
        self._threads.acquire()
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()
        self._threads.release()


class Bell(Descriptor):
    """Wakes one sleeper; ringing it before the sleeper waits is not lost."""

    def __init__(self, fd: int | None = None) -> None:
        """``fd``: made by another process."""
        super().__init__(os.eventfd(0, os.EFD_CLOEXEC) if fd is None else fd)

    def ring(self) -> None:
        """Ring the bell; never blocks."""
        os.eventfd_write(self.fd, 1)

    def wait(self) -> None:
        os.eventfd_read(self.fd)
