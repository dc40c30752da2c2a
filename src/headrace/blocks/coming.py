"""The reads of a rank in the order in which they are made, looked at a few hundred ahead."""

from typing import NamedTuple

import numpy as np

from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.permutation import Array
from headrace.blocks.remainder import Remainder, grouped, nothing

READS, SAMPLES = 1024, 1 << 20
"""Looked at ahead: so many reads at most, with about so many samples."""


class Fitting(NamedTuple):
    """Reads, how many samples each brings, these samples, and the memory that those of each read take."""

    reads: Array
    lengths: Array
    samples: Array
    costs: Array


_NONE = Fitting(nothing(), nothing(), nothing(), nothing())


class Coming:
    """The samples of a remainder, read by read: reads that were begun come first, whole ones after them."""

    def __init__(self, plan: BlockPlan, remainder: Remainder) -> None:
        self._plan = plan
        self._numbers, self._counts, self._loose = grouped(plan, remainder.loose)
        self._reads, self._tail = remainder.reads, remainder.tail
        self._again, self._spare = remainder.again, remainder.spare
        self._most = max(1, min(READS, SAMPLES // max(1, int(plan.layout.per.max(initial=1)))))
        self._seen, self._are_whole = _NONE, False

    def fitting(self, room: int, *, alone: bool = False) -> Fitting:
        """The next reads that fit into so many bytes together; the first one in any case, if it is ``alone``."""
        if not len(self._seen.reads):
            self._look()
        count = int(np.searchsorted(np.cumsum(self._seen.costs), room, "right"))
        count = max(count, int(alone and len(self._seen.reads) > 0))
        edge = int(self._seen.lengths[:count].sum())
        found = _cut(self._seen, 0, count, 0, edge)
        self._seen = _cut(self._seen, count, None, edge, None)
        return found

    def _look(self) -> None:
        """Look at the next reads."""
        most = self._most
        if len(self._numbers):
            numbers, lengths = self._numbers[:most], self._counts[:most]
            samples, self._are_whole = self._loose[: int(lengths.sum())], False
            self._numbers, self._counts = self._numbers[most:], self._counts[most:]
            self._loose = self._loose[len(samples) :]
        else:
            numbers, self._reads = self._reads[:most], self._reads[most:]
            if not len(numbers):
                numbers, self._tail = self._tail.first(most), self._tail.after(most)
            lengths, samples, self._are_whole = self._plan.sizes(numbers), self._plan.samples(numbers), True
        self._seen = Fitting(numbers, lengths, samples, lengths * self._plan.bytes(self._plan.bounds(numbers)[0]))

    def again(self) -> Array:
        """The samples that are repeated, once."""
        again, self._again = self._again, nothing()
        return again

    def rest(self) -> Remainder:
        """The part that was not given."""
        loose, reads = self._loose, self._reads
        if self._are_whole:
            reads = np.concatenate([self._seen.reads, reads])
        else:
            loose = np.concatenate([self._seen.samples, loose])
        return Remainder(self._tail, loose, reads, self._again, self._spare)


def _cut(seen: Fitting, begin: int, end: int | None, first: int, last: int | None) -> Fitting:
    return Fitting(seen.reads[begin:end], seen.lengths[begin:end], seen.samples[first:last], seen.costs[begin:end])
