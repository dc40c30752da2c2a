"""A shared arena in a memory file: ``arena.py`` with a lock, a clock, and the processes that come and die.

A process that reads or writes holds a lock on a byte of its own, which goes when it dies: so the others know that what
it read is free and what it wrote is nobody's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headrace.cache import arena_words as W
from headrace.cache.arena import Arena
from headrace.cache.arena_words import Shape
from headrace.cache.memory_file import Format, MemoryFile
from headrace.core.errors import CacheError

MAGIC, VERSION = 0x6872617265616E61, 3
PAUSE = 1.0
"""Seconds between two looks for dead writers, at least: where an arena is full, every sample made finds it so."""


def form_of(shape: Shape, url: str) -> Format:
    """What the file of such an arena says of itself."""
    return Format(MAGIC, VERSION, shape.size, 8 * shape.record0, url)


class ArenaFile(MemoryFile):
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
