"""A named memory file that processes of a host map, with a lock that dies with its holder.

The lock is a record lock on a byte beyond the file's end. Such locks belong to a process, and all of them go when any
of the process's descriptors of the file is closed: so a process has one descriptor of a file, in a ``MemoryFile`` that
all who use it share (``shared``).
"""

import fcntl
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from headrace.core.errors import CacheError

ROOT = Path("/dev/shm")  # noqa: S108  (a memory file system, and the files are the user's own)
LOCK, LIVES = 1 << 40, (1 << 40) + 1
"""Bytes that locks are held on: that of the file, and from the second on one for each process that says it lives."""


class Format(NamedTuple):
    """What a file must say of itself: its first three words are magic, version and ``size``."""

    magic: int
    version: int
    size: int
    """Bytes of the file."""
    fixed: int
    """Bytes at its beginning that are given memory when it is made."""
    url: str
    """What users call it."""


def checked(name: str) -> str:
    """The name, or ``CacheError`` if no file can have it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        msg = f"shm://{name}: the name of a cache has up to 64 letters, digits, dots, dashes and underscores"
        raise CacheError(msg)
    return name


class MemoryFile:
    """This process's one mapping of a file: ``bytes``, and ``words`` at its beginning."""

    def __init__(self, path: Path, form: Format, words: int) -> None:
        """Make the file, or map the one there is, which must be of the same format."""
        self.path, self.form, self.uses, self.pid = path, form, 0, os.getpid()
        self.threads = threading.RLock()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with self.locked():
                if not self.known(form):
                    self._found()
            self.memory = mmap.mmap(self.fd, form.size)
        except BaseException:
            os.close(self.fd)
            raise
        self.bytes = memoryview(self.memory)
        self.words = np.frombuffer(self.memory, np.int64, words)

    def known(self, form: Format) -> bool:
        """Whether the file is of this format; False if it is yet to be made, ``CacheError`` if it is of another."""
        head = np.frombuffer(os.pread(self.fd, 24, 0).ljust(24, b"\0"), np.int64)
        if head[0] == 0:
            return False
        if head[0] != form.magic or head[1] != form.version:
            msg = f"{self.path} was made by another version: remove it with `headrace cache clear {form.url}`"
            raise CacheError(msg)
        if head[2] != form.size:
            msg = (
                f"the cache {form.url} has {head[2]} bytes, and {form.size} were asked for: ask for the same, choose "
                f"another name, or remove it with `headrace cache clear {form.url}`"
            )
            raise CacheError(msg)
        return True

    def _found(self) -> None:
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, self.form.size)
        self.backed(0, self.form.fixed, wanted=True)
        os.pwrite(self.fd, np.array([0, self.form.version, self.form.size], np.int64).tobytes(), 0)
        os.pwrite(self.fd, np.array([self.form.magic], np.int64).tobytes(), 0)

    def backed(self, offset: int, size: int, *, wanted: bool = False) -> bool:
        """Have the kernel give the memory now: writing where there is none left would end the process."""
        try:
            os.posix_fallocate(self.fd, offset, size)
        except OSError as error:
            if wanted:
                msg = f"there is no shared memory for {self.form.url}: {error.strerror}"
                raise CacheError(msg) from None
            return False
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other processes and other threads of this one."""
        with self.threads:
            fcntl.lockf(self.fd, fcntl.LOCK_EX, 1, LOCK)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, LOCK)

    def live(self, number: int) -> bool:
        """Say that this process lives under a number; False if another does."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LIVES + number)
        except OSError:
            return False
        return True

    def lives(self, number: int) -> bool:
        """Whether another process lives under a number. Not to be asked of one's own: it would be given up."""
        if not self.live(number):
            return True
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, LIVES + number)
        return False

    def close(self) -> None:
        """Gives up the locks, unless they are those of the process this one was forked from."""
        self.words = np.empty(0, np.int64)
        self.bytes.release()
        with suppress(BufferError):  # somebody still has a view: the mapping goes with it
            self.memory.close()
        os.close(self.fd)


_File = TypeVar("_File", bound=MemoryFile)
_files: dict[Path, MemoryFile] = {}
_registry = threading.Lock()


def shared(path: Path, form: Format, make: Callable[[], _File]) -> _File:
    """This process's mapping of a file; give it back with ``release``."""
    with _registry:
        found = _files.get(path)
        if found is not None and found.pid != os.getpid():
            found.close()
            found = None
        if found is not None and not _is(found.fd, path):  # removed, or made anew, meanwhile
            found = None
        if found is None:
            found = _files[path] = make()
        else:
            found.known(form)
        found.uses += 1
        return found  # type: ignore[return-value]  # a path belongs to one kind of file


def _is(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def release(file: MemoryFile) -> None:
    """The last one closes it."""
    with _registry:
        if file.pid != os.getpid():
            return
        file.uses -= 1
        if file.uses == 0:
            if _files.get(file.path) is file:
                del _files[file.path]
            file.close()


def peek(path: Path, size: int) -> bytes:
    """The beginning of a file. One that this process has mapped is not opened: closing it would give up its locks."""
    with _registry:
        found = _files.get(path)
        if found is not None and found.pid == os.getpid() and _is(found.fd, path):
            return bytes(found.bytes[:size])
        try:
            with path.open("rb") as file:
                return file.read(size)
        except OSError:
            return b""
