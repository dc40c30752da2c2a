"""A dataset's samples as a plan counts them: one behind the other, as they lie in shards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headrace.blocks.block_layout import BlockLayout, block_bytes
from headrace.blocks.permutation import Array
from headrace.fetching.fetched import Rows
from headrace.store.reading.neighbours import Lying, NeighbourBlock, NeighbourStore

DENSE = 0.5
"""A part of the samples that is smaller than this is read one by one: what lies between is not worth reading."""


@dataclass(frozen=True)
class Arranged:
    """Samples in the order in which they lie. ``indices``: of the dataset; None where they are the same.

    ``places`` are what the store counts them by, ``shards`` the first sample of each of their shards and the one behind
    its last, as counted here; both None where nobody reads neighbours.
    """

    layout: BlockLayout
    indices: Array | None = None
    places: Array | None = None
    shards: tuple[Array, Array] | None = None

    def dataset_indices(self, samples: Array) -> Array:
        """The indices of the dataset that these samples are."""
        return samples if self.indices is None else self.indices[samples]

    def samples(self, indices: Array) -> Array:
        """The samples that these indices of the dataset are."""
        if self.indices is None:
            return indices
        inverse = np.empty(len(self.indices), np.int64)
        inverse[self.indices] = np.arange(len(self.indices))
        return inverse[indices]

    def blocks(self, samples: Array, begin: Array, end: Array) -> list[NeighbourBlock] | None:
        """The request for each of the samples, which lies in a block from ``begin`` to ``end``: a shard ends it."""
        if self.places is None or self.shards is None or self.layout.is_single:
            return None
        first, last = np.maximum(begin, self.shards[0][samples]), np.minimum(end, self.shards[1][samples]) - 1
        places = self.places[samples]
        before, after = places - self.places[first], self.places[last] - places
        return list(map(NeighbourBlock, places.tolist(), before.tolist(), after.tolist()))

    @property
    def words(self) -> str:
        """The way samples are read, in words for people."""
        per = int(self.layout.per.max(initial=1))
        if self.places is None or per == 1:
            return "samples one by one"
        return f"blocks of {per} samples, {per * self.layout.means.max() / 2**20:.2g} MiB"


def plain(length: int) -> Arranged:
    """Samples of any dataset, in any order."""
    return Arranged(BlockLayout([length], [length], block=0))


def in_shards(dataset: Any, memory: int, *, singly: bool) -> Callable[[], Arranged] | None:
    """A function that arranges a dataset whose samples lie in shards behind a network; None for any other dataset.

    ``singly``: every sample is a read of its own.
    """
    rows = Rows.of(dataset)
    if rows is None or not isinstance(rows.store, NeighbourStore):
        return None
    return partial(_of_rows, rows, rows.store, 0 if singly else block_bytes(memory))


def _of_rows(rows: Rows, store: NeighbourStore, block: int) -> Arranged:
    return _arranged(store.lying(rows.keys()), block)


def _arranged(lying: Lying, block: int) -> Arranged:
    order = np.lexsort((lying.places, lying.shards))
    shards, places = lying.shards[order], lying.places[order]
    counts = np.bincount(shards, minlength=len(lying.counts)).astype(np.int64)
    chosen = np.minimum(counts / np.maximum(lying.counts, 1), 1.0)
    is_dense = counts.sum() >= DENSE * lying.counts[counts > 0].sum()
    layout = BlockLayout(
        counts.tolist(),
        (lying.sizes * chosen).astype(np.int64).tolist(),
        block=block if is_dense else 0,
        whole=lying.whole and bool(block),
    )
    starts = np.concatenate([[0], np.cumsum(lying.counts)])[:-1]
    ends = np.cumsum(counts)
    return Arranged(layout, order, starts[shards] + places, ((ends - counts)[shards], ends[shards]))
