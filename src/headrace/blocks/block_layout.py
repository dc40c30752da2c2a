"""Samples of shards, one behind the other, and their division into blocks of about equal size.

A block is a run of neighbouring samples, counted and not measured: where it begins follows from the shards' numbers of
samples and bytes, so an epoch of 10 TB is planned before a table of offsets was read. Its bytes are known when it is
read, and may differ from the mean that is planned with.
"""

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.blocks.permutation import Array, randoms

BLOCK, SMALL_BLOCK = 1 << 20, 256 << 10
SMALL_MEMORY = 512 << 20
"""Bytes of memory below which blocks are small: a uniform draw needs hundreds of blocks to draw from."""
SINGLY = 256_000
"""Bytes of a mean sample from which on samples are read one by one: a request is as good as the path carries then."""
LIKE = 2.0
"""The mean of a region's largest shard is at most so many times that of its smallest."""
BESIDE = 16
"""Bytes that a held sample takes beside its own."""


class Piece(NamedTuple):
    """Neighbouring samples of one shard, counted in it."""

    shard: int
    begin: int
    end: int


def block_bytes(memory: int) -> int:
    """The bytes of a block where that much memory is given."""
    return SMALL_BLOCK if memory < SMALL_MEMORY else BLOCK


class BlockLayout:
    """The layout of samples in shards: ``counts`` and ``sizes`` (in bytes) of the shards, in order. Samples are
    numbered through.

    ``block``: bytes; 0 reads every sample by itself. ``whole``: shards are read whole, whatever their size: they are
    compressed, or row groups. Shards whose mean samples are alike make a region, in which all blocks have one number of
    samples; a block may end in the next shard of its region.
    """

    def __init__(self, counts: Iterable[int], sizes: Iterable[int], *, block: int = BLOCK, whole: bool = False) -> None:
        self._counts, measured = (np.array(list(values), np.int64) for values in (counts, sizes))
        if len(self._counts) != len(measured) or (self._counts < 0).any() or (measured < 0).any() or block < 0:
            raise ValueError("a layout takes one number of samples and one of bytes for each shard, none negative")
        self.shards = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.int64)
        """The first sample of each shard, and the end."""
        self.total = int(self.shards[-1])
        filled = np.flatnonzero(self._counts)
        means = measured[filled] / self._counts[filled]
        edges = np.arange(len(filled)) if whole else _regions(means.tolist())
        self.starts = np.append(self.shards[filled[edges]], self.total)
        """The first sample of each region, and the end."""
        lengths = np.diff(self.starts)
        totals = np.add.reduceat(measured[filled], edges) if len(filled) else measured[:0]
        self.means = totals / np.maximum(lengths, 1) + BESIDE
        """Bytes that a sample of each region takes in memory."""
        self.per = lengths if whole else _per(totals / np.maximum(lengths, 1), block)
        """Samples of a block of each region."""
        self.shifts = not whole
        """Whether borders differ from epoch to epoch."""

    @property
    def is_single(self) -> bool:
        """True if every block is one sample."""
        return bool((self.per <= 1).all())

    @property
    def digest(self) -> int:
        """The number that two layouts share when they divide the same samples the same way."""
        return zlib.crc32(self.per.tobytes(), zlib.crc32(self.starts.tobytes(), int(self.shifts)))

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """The samples from ``begin`` to ``end``, by the shards that they lie in."""
        found, shard = [], int(np.searchsorted(self.shards, begin, "right")) - 1
        while begin < end:
            first, after = int(self.shards[shard]), int(self.shards[shard + 1])
            if after > begin:
                found.append(Piece(shard, begin - first, min(end, after) - first))
                begin = after
            shard += 1
        return found


class Borders:
    """The blocks of one epoch, numbered as they lie. Borders begin at a random place of each region."""

    def __init__(self, layout: BlockLayout, stream: int) -> None:
        self._layout = layout
        regions = len(layout.per)
        shifts = (randoms(stream, 0, regions) % np.maximum(layout.per, 1).astype(np.uint64)).astype(np.int64)
        self._shifts = shifts if layout.shifts else np.zeros(regions, np.int64)
        lengths = np.diff(layout.starts)
        self.firsts = np.concatenate([[0], np.cumsum(-(-(lengths + self._shifts) // layout.per))]).astype(np.int64)
        """The first block of each region, and the number of all blocks."""
        self.count = int(self.firsts[-1])

    def bounds(self, blocks: Array) -> tuple[Array, Array]:
        """The first sample of each of these blocks, and the one behind its last."""
        layout = self._layout
        region = np.searchsorted(self.firsts, blocks, "right") - 1
        begin = layout.starts[region] + (blocks - self.firsts[region]) * layout.per[region] - self._shifts[region]
        end = np.minimum(begin + layout.per[region], layout.starts[region + 1])
        return np.maximum(begin, layout.starts[region]), end

    def of(self, samples: Array) -> Array:
        """The block that each of these samples lies in."""
        region = np.searchsorted(self._layout.starts, samples, "right") - 1
        within = samples - self._layout.starts[region] + self._shifts[region]
        return np.asarray(self.firsts[region] + within // self._layout.per[region])

    def bytes(self, samples: Array) -> Array:
        """The memory that each of these samples is planned to take."""
        region = np.searchsorted(self._layout.starts, samples, "right") - 1
        return np.asarray(self._layout.means[region].astype(np.int64))

    def irregular(self) -> tuple[Array, int]:
        """Blocks that may have another number of samples than most have, and that number."""
        layout = self._layout
        lengths = np.diff(self.firsts)
        usual = int(layout.per[np.argmax(lengths)]) if len(lengths) else 1
        others = np.flatnonzero(layout.per != usual)
        edges = np.concatenate([self.firsts[:-1], self.firsts[1:] - 1])
        inner = [np.arange(self.firsts[region], self.firsts[region + 1]) for region in others]
        return np.unique(np.concatenate([edges, *inner])).astype(np.int64), usual


def _regions(means: list[float]) -> Array:
    """The numbers of the shards at which regions begin, given the mean sample size of each shard."""
    edges: list[int] = []
    least = most = 0.0
    for number, mean in enumerate(means):
        least, most = min(least, mean), max(most, mean)
        if not edges or most > LIKE * least:
            edges.append(number)
            least = most = mean
    return np.array(edges, np.int64)


def _per(means: npt.NDArray[np.float64], block: int) -> Array:
    """Samples of a block, by the mean bytes of a sample."""
    most = np.where(means >= SINGLY, 0.0, block / np.maximum(means, 1.0))
    return np.maximum(1, np.rint(most)).astype(np.int64)
