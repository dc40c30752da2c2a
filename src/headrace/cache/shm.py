"""``shm://name``: entries in a memory file that all processes and jobs of a host map; no daemon, no copies for readers.

What a process does with the file they share is in ``arena_file.py``.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from headrace.cache import arena_words as W
from headrace.cache.arena import Name
from headrace.cache.arena_file import ArenaFile, form_of
from headrace.cache.arena_words import Shape
from headrace.cache.memory_file import ROOT, checked, release, shared
from headrace.cache.tier import Key, Usage, Writer
from headrace.core.errors import CacheError

PREFIX = "headrace-cache-"
LEAST = 1 << 20


def path_of(name: str) -> Path:
    """The file of a cache; ``CacheError`` for a name that cannot be one."""
    return ROOT / f"{PREFIX}{checked(name)}"


def names() -> list[str]:
    """The caches of this host that this user may read."""
    found = sorted(ROOT.glob(f"{PREFIX}*"))
    return [each.name[len(PREFIX) :] for each in found if each.is_file() and os.access(each, os.R_OK | os.W_OK)]


def size_of(name: str) -> int:
    """The limit a cache was made with; ``CacheError`` if there is none of that name."""
    try:
        return path_of(name).stat().st_size
    except OSError:
        msg = f"there is no cache shm://{name} on this host"
        raise CacheError(msg) from None


class SharedMemoryTier:
    """A tier in shared memory. Objects travel through ``fork``: each process attaches on its own."""

    def __init__(self, name: str, size: int) -> None:
        """Make it, or attach to the one there is, which must be of the same size."""
        if size < LEAST:
            msg = f"a cache in shared memory takes at least {LEAST} bytes, and {size} were asked for"
            raise CacheError(msg)
        self.name, self._path, self._shape = name, path_of(name), Shape(size)
        self._form = form_of(self._shape, f"shm://{name}")
        self._own: ArenaFile | None = self._attach()

    def _attach(self) -> ArenaFile:
        return shared(self._path, self._form, lambda: ArenaFile(self._path, self._form, self._shape))

    @property
    def _here(self) -> ArenaFile:
        if self._own is None:
            msg = f"the cache {self._form.url} was closed"
            raise CacheError(msg)
        if self._own.pid != os.getpid():
            self._own = self._attach()
        return self._own

    def reading(self) -> "SharedReading":
        """Enter it to read without copying."""
        return SharedReading(self._here)

    def put(self, key: Key, size: int, write: Writer) -> bool:
        """See ``Tier``."""
        here, name = self._here, _name(key)
        with here.changing() as arena:
            if arena.find(name) is not None:
                return False
            where = here.room(size)
            if where is None:
                return False
            chunk = arena.allocate(name, size, where, here.number)
        try:
            write(here.bytes[chunk.offset : chunk.offset + size])
        except BaseException:
            with here.changing() as arena:
                arena.free(chunk.record)
            raise
        with here.changing() as arena:
            if arena.find(name) is not None:
                arena.free(chunk.record)
                return False
            arena.publish(chunk.record)
        return True

    def delete(self, keys: Sequence[Key]) -> None:
        """See ``Tier``."""
        with self._here.changing() as arena:
            for key in keys:
                arena.delete(_name(key))
            arena.reclaim()

    def listed(self) -> Iterator[tuple[Key, int]]:
        """See ``Tier``; a snapshot."""
        here = self._here
        with here.locked():
            arena = here.arena
            arena.heal()
            found = [arena.r[record : record + W.RECORD].tolist() for record, _ in arena.records(W.READY)]
        for each in found:
            yield _key(Name(*each[W.R_SCOPE : W.R_FORM + 1])), each[W.R_SIZE]

    def clear(self) -> None:
        """See ``Tier``. The memory goes back to the host with the file: ``remove``."""
        self.delete([key for key, _ in self.listed()])

    def usage(self) -> Usage:
        """See ``Tier``."""
        here = self._here
        with here.locked():
            arena = here.arena
            arena.heal()
            shape = arena.shape
            return Usage(int(arena.r[W.ENTRIES]), int(arena.r[W.HELD]), shape.pages * shape.page)

    def footprint(self, size: int) -> int:
        """See ``Tier``."""
        return self._shape.cut(size)

    def readers(self) -> int:
        """Processes that use it, this one included."""
        here = self._here
        with here.locked():
            others = [number for number in range(W.READERS) if number != here.number]
            return 1 + sum(here.lives(number) for number in others)

    def close(self) -> None:
        """See ``Tier``."""
        if self._own is not None:
            release(self._own)
            self._own = None


class SharedReading:
    """What is handed out is the memory itself; nobody reuses it before this is left."""

    def __init__(self, file: ArenaFile) -> None:
        """Entered with the first ``get``, under the same lock: all that is wanted before is a place to leave."""
        self._file, self._entered = file, False

    def __enter__(self) -> Self:
        return self

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        file = self._file
        with file.locked():
            file.arena.heal()
            if not self._entered:
                file.enter()
                self._entered = True
            chunks = [file.arena.find(_name(key)) for key in keys]
        return [
            None if each is None else file.bytes[each.offset : each.offset + each.size].toreadonly() for each in chunks
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._entered = False
            self._file.leave()


def remove(name: str) -> None:
    """Give a cache's memory back. Processes that use it keep what they have mapped, and share it with nobody new."""
    path_of(name).unlink(missing_ok=True)


def _name(key: Key) -> Name:
    scope = int(key.scope, 16)
    if scope >= 1 << 128:
        msg = f"the scope of a key has up to 32 hexadecimal digits, not {key.scope!r}"
        raise CacheError(msg)
    halves = np.array([scope >> 64, scope & (1 << 64) - 1], np.uint64).view(np.int64).tolist()
    return Name(halves[0], halves[1], key.sample, key.form)


def _key(name: Name) -> Key:
    high, low = np.array(name[:2], np.int64).view(np.uint64).tolist()
    return Key(f"{high << 64 | low:032x}", name.sample, name.form)
