"""The reads of an epoch in the order in which they are made, known from the seed alone."""

from functools import cached_property

import numpy as np

from headrace.blocks.block_layout import BlockLayout, Borders
from headrace.blocks.permutation import Array, Permutation, Unchanged, key

_BORDERS, _ORDER, _DRAWS = range(3)


class BlockPlan:
    """All reads of one epoch, numbered from 0 in random order; ``samples`` of a read are neighbours in a shard.

    It knows neither time nor memory nor ranks, and takes no memory that grows with the number of samples.
    """

    def __init__(self, layout: BlockLayout, seed: int, epoch: int, *, shuffle: bool = True) -> None:
        """Plan the blocks of an epoch; without ``shuffle``, a layout of single samples is read in its own order."""
        if not shuffle and not layout.is_single:
            raise ValueError("only samples that are read one by one come in their own order")
        self.layout, self.seed, self.epoch = layout, seed, epoch
        self._blocks = Borders(layout, key(seed, epoch, _BORDERS))
        self.count = self._blocks.count
        """Of the reads."""
        self._order = Permutation(self.count, key(seed, epoch, _ORDER)) if shuffle else Unchanged()

    @property
    def total(self) -> int:
        """Samples of the epoch."""
        return self.layout.total

    def stream(self, *parts: int) -> int:
        """A stream of random numbers for draws, different for other parts."""
        return key(self.seed, self.epoch, _DRAWS, *parts)

    def bounds(self, reads: Array) -> tuple[Array, Array]:
        """The first sample of each of these reads, and the one behind its last."""
        return self._blocks.bounds(self._order(reads))

    def reads(self, samples: Array) -> Array:
        """The read that brings each of these samples."""
        return self._order.places(self._blocks.of(samples))

    def bytes(self, samples: Array) -> Array:
        """The memory that each of these samples is planned to take while it is held."""
        return self._blocks.bytes(samples)

    def samples(self, reads: Array) -> Array:
        """All samples of these reads, read by read."""
        begin, end = self.bounds(reads)
        return runs(begin, end - begin)

    def sizes(self, reads: Array) -> Array:
        """The number of samples of each of these reads."""
        begin, end = self.bounds(reads)
        return np.asarray(end - begin)

    def counted(self, begin: int, step: int) -> Array:
        """The number of samples that the reads ``begin + k``, ``begin + k + step``, … have together, for each ``k <
        step``.
        """
        numbers, missing, usual = self._irregular
        later = numbers >= begin
        sums = np.bincount((numbers[later] - begin) % step, missing[later], step).astype(np.int64)
        full = np.maximum(0, -(-(self.count - begin - np.arange(step)) // step))
        return np.asarray(usual * full - sums)

    @cached_property
    def _irregular(self) -> tuple[Array, Array, int]:
        """Reads that may have another number of samples than most, how many less, and how many most have."""
        blocks, usual = self._blocks.irregular()
        begin, end = self._blocks.bounds(blocks)
        return self._order.places(blocks), usual - (end - begin), usual


def runs(begin: Array, lengths: Array) -> Array:
    """The numbers from each of ``begin`` on, so many each, one run behind the other."""
    ends = np.cumsum(lengths)
    shift = np.repeat(begin - (ends - lengths), lengths)
    return np.asarray(np.arange(len(shift), dtype=np.int64) + shift)
