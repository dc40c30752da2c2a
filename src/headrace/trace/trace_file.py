"""The file that streams of several processes write to: made or joined, one extent at a time."""

import fcntl
import mmap
import os
import socket
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.core.errors import TraceError
from headrace.trace import format as F
from headrace.trace.trace_stream import TraceStream

_open: "weakref.WeakValueDictionary[str, Recording]" = weakref.WeakValueDictionary()
_opening = threading.Lock()


def record(path: str | os.PathLike[str]) -> "Recording":
    """The recording at that path: the one of this process or another that is under way, or a new one.

    A finished trace of another program is replaced; any other file is left alone and refused with ``TraceError``.
    """
    where = os.path.abspath(os.fspath(path))  # noqa: PTH100  (resolve() would follow a link that is to be replaced)
    with _opening:
        known = _open.get(where)
        if known is None:
            known = _open[where] = Recording(where)
            _announce(where)
        return known


ANNOUNCED = "HEADRACE_TRACES"
"""Names a file to which a program adds the paths of the traces it makes, for whoever started it to find them."""


def _announce(path: str) -> None:
    told = os.environ.get(ANNOUNCED)
    if told:
        with suppress(OSError), open(told, "a") as file:  # noqa: PTH123  (appending is all: one line, one write)
            file.write(f"{path}\n")


class Recording:
    """A trace being written. Every thread has a stream of its own in it; nobody waits for anybody.

    It ends when nobody refers to it or to a stream of it any more. It can be sent to another process, which then writes
    to the same file; forked processes just go on.
    """

    def __init__(self, path: str, join: bytes | None = None) -> None:
        """``join``: the id of the trace that must be there; without it a new one is made unless one is under way."""
        self.path = path
        self._extents = _TraceExtents(path, join)
        self.base, self.wall, self.id = self._extents.begun
        self._streams = threading.local()
        _alive.add(self)

    def __reduce__(self) -> Any:
        """Another process joins what is there."""
        return _joined, (self.path, self.id)

    def stream(self) -> TraceStream:
        """The calling thread's stream."""
        stream: TraceStream | None = getattr(self._streams, "stream", None)
        if stream is None:
            stream = self._streams.stream = TraceStream(self._extents.take, self.base)
        return stream

    def forget(self) -> None:
        """The streams are another process's; this one, its child, begins its own."""
        self._streams = threading.local()


def _joined(path: str, identity: bytes) -> Recording:
    with _opening:
        known = _open.get(path)
        if known is None or known.id != identity:
            known = _open[path] = Recording(path, identity)
        return known


_alive: "weakref.WeakSet[Recording]" = weakref.WeakSet()


def _after_fork() -> None:
    for recording in list(_alive):
        recording.forget()


os.register_at_fork(after_in_child=_after_fork)


class _TraceExtents:
    """The file itself."""

    def __init__(self, path: str, join: bytes | None) -> None:
        self._path, self._file, self._warned = path, _opened(path), False
        try:
            self.begun = _begun(self._file, path, join)
            self._header = mmap.mmap(self._file, mmap.PAGESIZE)
        except BaseException:
            os.close(self._file)
            raise
        weakref.finalize(self, os.close, self._file)

    def take(self, stream: int, number: int) -> mmap.mmap | None:
        """Room for a stream to write to; None when there is none left, which ends the trace, not the program."""
        try:
            with _section(self._file):
                at = -(-os.fstat(self._file).st_size // F.EXTENT) * F.EXTENT
                os.posix_fallocate(self._file, at, F.EXTENT)  # else a full disk would be a SIGBUS later
                room = mmap.mmap(self._file, F.EXTENT, offset=at)
        except OSError as error:
            struct.pack_into("<I", self._header, F.STATE_OFFSET, F.DISK_FULL)
            if not self._warned:
                self._warned = True
                message = f"the trace {self._path} ends here: {error.strerror}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            return None
        F.EXTENT_HEAD.pack_into(room, 0, F.EXTENT_MAGIC, number, os.getpid(), threading.get_native_id(), stream, 0)
        return room


@contextmanager
def _section(file: int) -> Iterator[None]:
    """The file is extended by one process at a time; the kernel frees the lock of a dead one."""
    with _threads:  # the kernel's lock is a process's: its threads would not wait for each other
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


_threads = threading.Lock()
# Nobody forks while a thread holds it: the child would have it locked, and no thread that lets go of it.
os.register_at_fork(before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise TraceError(
            f"trace={path!r}: cannot be written ({error.strerror}); name a file in a directory that exists"
        ) from error


def _begun(file: int, path: str, join: bytes | None) -> tuple[int, int, bytes]:
    """(monotonic base, wall-clock base, id) of the trace in ``file``, which is begun unless one is under way."""
    with _section(file):
        head = os.pread(file, F.HEADER.size, 0)
        ours = head.startswith(F.MAGIC) and len(head) == F.HEADER.size
        if head and not ours:
            raise TraceError(f"trace={path!r}: {F.IN_THE_WAY}")
        if join is None and head[_IDENTITY] not in _ours and not _in_use(file):
            _begin(file, path)
            head = os.pread(file, F.HEADER.size, 0)
            _ours.add(head[_IDENTITY])
        # Until the last process that has this descriptor, forked ones too, is gone: flock's lock is the open file's.
        fcntl.flock(file, fcntl.LOCK_SH)
    if not head:
        raise TraceError(f"trace={path!r}: the trace that this process was to write to is gone")
    _, version, extent, base, wall, identity, _, _ = F.HEADER.unpack(head)
    if (version, extent) != (F.VERSION, F.EXTENT) or identity != (join or identity):
        raise TraceError(f"trace={path!r}: another trace is being written there; choose another name")
    return base, wall, identity


_ours: set[bytes] = set()
"""Traces that this process began: it goes on with them, whatever it closed in between."""
_IDENTITY = slice(F.STATE_OFFSET - 16, F.STATE_OFFSET)


def _in_use(file: int) -> bool:
    """True while a writer, which holds a shared lock, has the file open."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _begin(file: int, path: str) -> None:
    try:
        os.ftruncate(file, 0)
        os.posix_fallocate(file, 0, mmap.PAGESIZE)  # the page that is mapped; the header's other ones stay a hole
        os.ftruncate(file, F.EXTENT)
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        raise TraceError(f"trace={path!r}: cannot be written ({error.strerror})") from error
    before = time.monotonic_ns()
    wall = time.time_ns()
    base = (before + time.monotonic_ns()) // 2  # two clocks cannot be read at once: the middle is off by half as much
    host = socket.gethostname().encode()[:64]
    os.pwrite(file, F.HEADER.pack(F.MAGIC, F.VERSION, F.EXTENT, base, wall, os.urandom(16), F.RECORDING, host), 0)
