"""Shared memory as a test sees it: words that can stop a process before any store."""

import numpy as np

from headrace.cache import ledger
from headrace.cache.words import Dims


class Killed(Exception):
    """The process was killed before this store."""


class Words:
    """Stores go through here, reads through ``view``. With a fuse, only so many further stores take effect."""

    def __init__(self, count: int) -> None:
        self._words = np.zeros(count, np.int64)
        self.view = self._words.view()
        self.view.flags.writeable = False
        self.fuse: int | None = None

    def __setitem__(self, key, value) -> None:
        if not isinstance(key, slice):
            self._store(key, value)
            return
        values = np.asarray(value)
        assert key.stop - key.start == len(values)
        for at, word in enumerate(values.tolist(), key.start):
            self._store(at, word)

    def _store(self, at: int, value: int) -> None:
        assert 0 <= at < len(self._words)
        if self.fuse is not None:
            if self.fuse == 0:
                raise Killed
            self.fuse -= 1
        self._words[at] = value


def empty(samples: int, budget: tuple[int, int, int]) -> Words:
    """An empty ledger."""
    dims = Dims(samples)
    words = Words(dims.words)
    ledger.found(words, dims, budget)
    return words
