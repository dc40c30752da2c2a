"""``shm://name``: entries in a memory file that all processes and jobs of a host map; no daemon, no copies for readers.

A process that reads or writes holds a lock on a byte of its own, which goes when it dies: so the others know that what
it read is free and what it wrote is nobody's.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from headrace.cache import arena_words as W
from headrace.cache.arena import Arena, Name
from headrace.cache.arena_words import Shape
from headrace.cache.memory_file import ROOT, Format, MemoryFile, checked, release, shared
from headrace.cache.tier import Key, Usage, Writer
from headrace.core.errors import CacheError

PREFIX = "headrace-cache-"
MAGIC, VERSION = 0x6872617265616E61, 3
LEAST = 1 << 20
PAUSE = 1.0
"""Seconds between two looks for dead writers, at least: where an arena is full, every sample made finds it so."""


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


class _Attached(MemoryFile):
    """This process's place in a cache, shared by its tiers."""

    def __init__(self, path: Path, form: Format, shape: Shape) -> None:
        super().__init__(path, form, shape.words)
        self.reads, self._looked = 0, -PAUSE
        self.arena = Arena(self.words, self.words, shape)
        try:
            with self.locked():
                self.number = self._sit()
        except BaseException:
            self.close()
            raise

    def _sit(self) -> int:
        """A number among the readers; whoever had it before is gone."""
        for number in range(W.READERS):
            if self.live(number):
                with self.arena.changing():
                    self._bury(number)
                return number
        msg = f"the cache {self.form.url} is used by {W.READERS} processes, and takes no more"
        raise CacheError(msg)

    def _bury(self, number: int) -> None:
        """Forget what a process that is gone read and wrote."""
        self.arena.w[self.arena.shape.readers + number] = 0
        for record in self.arena.written_by(number):
            self.arena.free(record)

    @contextmanager
    def changing(self) -> Iterator[Arena]:
        with self.locked(), self.arena.changing():
            yield self.arena

    def enter(self) -> None:
        """Begin to read, with the lock held: what is found from now on stays until ``leave``."""
        if not self.reads:
            arena = self.arena
            arena.w[arena.shape.readers + self.number] = int(arena.r[W.CLOCK]) + 1
        self.reads += 1

    def leave(self) -> None:
        with self.threads:
            self.reads -= 1
            if not self.reads:
                self.arena.w[self.arena.shape.readers + self.number] = 0

    def room(self, size: int) -> tuple[int, int, int] | None:
        """With the lock held, inside ``changing``: reclaim what can be, also from the dead."""
        arena = self.arena
        found = arena.room(size)
        if found is None and arena.r[W.WAITING] and arena.reclaim():
            found = arena.room(size)
        if found is None and (arena.r[W.WAITING] or time.monotonic() - self._looked >= PAUSE):
            self._looked = time.monotonic()
            reading = arena.r[arena.shape.readers : arena.shape.readers + W.READERS]
            users = set(np.flatnonzero(reading).tolist())
            users |= {int(arena.r[record + W.R_STAMP]) for record, _ in arena.records(W.WRITING)}
            for number in users - {self.number}:
                if not self.lives(number):
                    self._bury(number)
            arena.reclaim()
            found = arena.room(size)
        return found if found is None or self._has_memory(found) else None

    def _has_memory(self, where: tuple[int, int, int]) -> bool:
        page, count, _ = where
        shape = self.arena.shape
        if self.arena.r[shape.page0 + 2 * page]:
            return True
        records = 8 * W.RECORD * shape.records_per_page
        return self.backed(shape.data + page * shape.page, count * shape.page) and self.backed(
            8 * shape.record(page, 0), records
        )

    def close(self) -> None:
        self.arena.w = self.arena.r = np.empty(0, np.int64)
        super().close()


class SharedMemoryTier:
    """A tier in shared memory. Objects travel through ``fork``: each process attaches on its own."""

    def __init__(self, name: str, size: int) -> None:
        """Make it, or attach to the one there is, which must be of the same size."""
        if size < LEAST:
            msg = f"a cache in shared memory takes at least {LEAST} bytes, and {size} were asked for"
            raise CacheError(msg)
        self.name, self._path, self._shape = name, path_of(name), Shape(size)
        self._form = Format(MAGIC, VERSION, size, 8 * self._shape.record0, f"shm://{name}")
        self._own: _Attached | None = self._attach()

    def _attach(self) -> _Attached:
        return shared(self._path, self._form, lambda: _Attached(self._path, self._form, self._shape))

    @property
    def _here(self) -> _Attached:
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

    def __init__(self, attached: _Attached) -> None:
        """Entered with the first ``get``, under the same lock: all that is wanted before is a place to leave."""
        self._attached, self._entered = attached, False

    def __enter__(self) -> Self:
        return self

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        attached = self._attached
        with attached.locked():
            attached.arena.heal()
            if not self._entered:
                attached.enter()
                self._entered = True
            chunks = [attached.arena.find(_name(key)) for key in keys]
        return [
            None if each is None else attached.bytes[each.offset : each.offset + each.size].toreadonly()
            for each in chunks
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._entered = False
            self._attached.leave()


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
