"""The samples that a rank has still to serve of an epoch, in its own memory. That each sample comes once follows
from this alone.

A sample is served only if it is here, and is then gone; as many as are asked for are served, whatever anybody else
says, knows or loses. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from headrace.cache.backends.entry_word import Array
from headrace.cache.entries.entry import Bytes


class Remaining:
    """A little more than 5 bytes for each sample, 9 once others than those drawn are served."""

    def __init__(self, samples: int, members: Array | None, done: Array, rng: np.random.Generator) -> None:
        """An epoch of ``members`` (None: all), of which ``done`` were served before."""
        self._left = np.ones(samples, bool) if members is None else np.zeros(samples, bool)
        if members is not None:
            self._left[members] = True
        # Before what is done is taken out: a state asks for all that was ever served.
        self._members = np.packbits(self._left)
        self._left[done] = False
        self.count = int(np.count_nonzero(self._left))
        self._rng = rng
        self._order: NDArray[np.int32] | Array | None = None
        self._at = 0
        self._front = np.empty(0, np.int64)

    def of(self, samples: Array) -> Array:
        """The samples among these that are left."""
        found: Array = samples[self._left[samples]]
        return found

    def take(self, samples: Array) -> None:
        """Mark these samples as served."""
        assert self._left[samples].all(), "a sample is served twice"
        self._left[samples] = False
        self.count -= len(samples)

    def some(self, count: int, besides: Array) -> Array:
        """Samples of those left, up to ``count``, at random, without ``besides``; the same ones until they are
        served.
        """
        front = self.of(self._front)
        wanted = count + len(besides)
        if len(front) < wanted:
            order = self._shuffled()
            parts = [front]
            found = len(front)
            while found < wanted and self._at < len(order):
                more = self.of(order[self._at : self._at + 2 * wanted].astype(np.int64))
                # The order is gone through once in an epoch, so all requests together cost what it is long.
                self._at += 2 * wanted
                parts.append(more)
                found += len(more)
            front = np.concatenate(parts)
        self._front = front
        return front[~np.isin(front, besides)][:count]

    def served(self) -> Bytes:
        """A bit for each sample that was here and is served, as ``np.packbits`` has them: 8 ms for 100 million."""
        return self._members & ~np.packbits(self._left)

    def all(self) -> Array:
        """All that are left, in no order."""
        return np.flatnonzero(self._left)

    def _shuffled(self) -> NDArray[np.int32] | Array:
        if self._order is None:
            left = self.all()
            self._order = self._rng.permutation(left.astype(np.int32) if len(self._left) < 1 << 31 else left)
            self._at = 0
        return self._order


class RemainingPool:
    """Samples that are cached as far as is known, and that may be left: in random order, whenever each came."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Begin without samples."""
        self._samples, self._rng = np.empty(64, np.int64), rng
        self.count = 0

    def fill(self, samples: Array) -> None:
        """Hold these samples and no others."""
        self._samples, self.count = self._rng.permutation(samples), len(samples)

    def add(self, samples: Array) -> None:
        """Add further samples."""
        end = self.count + len(samples)
        if end > len(self._samples):
            self._samples = np.concatenate([self._samples[: self.count], np.empty(end + 64, np.int64)])
        self._samples[self.count : end] = samples
        for at in range(self.count, end):
            # To a random place among those there: the pool stays shuffled.
            other = int(self._rng.integers(at + 1))
            self._samples[[at, other]] = self._samples[[other, at]]
        self.count = end

    def draw(self, count: int) -> Array:
        """Draw up to ``count`` of the samples, which are not here any more."""
        first = max(0, self.count - count)
        found = self._samples[first : self.count].copy()
        self.count = first
        return found
