"""A file read whole, or a piece of it: a file, and nothing that would have to be waited for."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "is a FIFO",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}
MOST = 2**31 - 1
"""Bytes of a sample: no database takes more in one value."""


class NoFile(ValueError):
    """Something else than a file, or one that is too large to be a sample."""


def read_file(path: str | Path) -> bytes:
    """The content of a file. Raises ``NoFile``, or ``OSError``; never waits for somebody to write."""
    _check(os.stat(path))  # noqa: PTH116  (opening a device may do something)
    # Not to be waited for: it may have become a FIFO since it was looked at.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123  (a descriptor)
        _check(os.fstat(handle))  # it may be another one by now
        return file.read()


def is_there(path: Path) -> bool:
    """True if there is something. Raises ``OSError`` where that cannot be seen: ``Path.exists`` says no then, from
    Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL is in no name
        return False
    return True


def stamp_of(status: os.stat_result) -> str:
    """Tells one state of a file from another."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def read_at(path: Path, offset: int, size: int, stamp: str | None = None) -> bytes:
    """A piece of a file; no position is shared, so any thread of any process may read.

    Raises ``OSError`` also where the file ends too early, before any memory is taken, and where it is in another state
    than ``stamp``. Opening anew costs ten microseconds and holds nothing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stamp is not None and stamp_of(status) != stamp:
            raise OSError("it was replaced since it was listed")
        if offset + size > status.st_size:
            raise OSError(f"the file ends within what should be at {offset}")
        found = os.pread(descriptor, size, offset)
        while len(found) < size:  # one read gives at most 2 GiB, and network file systems give what they have
            more = os.pread(descriptor, size - len(found), offset + len(found))
            if not more:
                raise OSError(f"the file ends within what should be at {offset}")
            found += more
        return found
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; at the end it replaces ``path``, which is there whole or not at all, and an older one
    until then.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _check(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(21, "Is a directory")
    if kind != stat.S_IFREG:
        raise NoFile(f"{_KINDS.get(kind, 'is no file')}, and no file to read a sample from")
    if status.st_size > MOST:
        raise NoFile(f"has {status.st_size} bytes, and a sample has {MOST} at most")
