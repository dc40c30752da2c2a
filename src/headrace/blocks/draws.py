"""Samples in the order in which they are to be delivered: drawn uniformly from the blocks that are held.

The pool is planned, not measured: a read is held as soon as it fits, each of its samples until it is drawn. So the
order follows from the seed and the memory alone, and whoever reads later than planned holds less.
"""

from typing import NamedTuple

import numpy as np

from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.coming import Coming
from headrace.blocks.permutation import Array, key, randoms
from headrace.blocks.remainder import Remainder, nothing

FIRST_BLOCKS = 64
"""So many blocks are held before the first draw; for each that was drawn since there may be one more."""
POOL = 0.75
"""The part of a loader's memory that the pool is planned to take; the rest is under way, or being worked on."""
SHARE = 16
"""So small a part of the held samples is drawn at once."""
AT_ONCE = 1024
"""And not more samples than this."""
REBASED = 1 << 17
"""After so many draws the pool is put in order, so that nobody has to follow an epoch from its beginning."""
_ANY = 1 << 62


def pool_bytes(memory: int) -> int:
    """The bytes of samples that may be held, where a loader has so much memory."""
    return int(POOL * memory)


class DrawStep(NamedTuple):
    """The next step: ``held`` are reads from which ``drawn`` may come, ``released`` are reads that are not needed
    any more.
    """

    held: Array
    drawn: Array
    released: Array


class Draws:
    """The draws of one rank, step by step. ``memory``: bytes of samples that may be held at once.

    ``drawn``: the samples that this rank drew before. Two with the same arguments draw the same; ``base`` and
    ``base_drawn`` are arguments with which another goes on from there.
    """

    def __init__(self, plan: BlockPlan, remainder: Remainder, memory: int, *, rank: int = 0, drawn: int = 0) -> None:
        self._plan, self._memory, self._rank = plan, memory, rank
        self._mean = max(1, int(np.average(plan.layout.means, weights=plan.layout.per))) if plan.total else 1
        self._first = FIRST_BLOCKS * int((plan.layout.per * plan.layout.means).max(initial=1))
        self.drawn = drawn
        """Samples, since the epoch began."""
        self._begin(remainder)

    def _begin(self, remainder: Remainder) -> None:
        """Hold nothing, and go on with what is left: the state of the pool is this and the number drawn."""
        self.base, self.base_drawn = remainder, self.drawn
        self._stream, self._used = key(self._plan.stream(self._rank), self.drawn), 0
        self._coming = Coming(self._plan, remainder)
        self._samples, self._slots = nothing(), nothing()  # held, in any order: the first ``_count`` of these
        self._count = self._bytes = 0
        self._free: list[int] = []
        self._left, self._cost, self._reads = nothing(), nothing(), nothing()  # by slot

    def step(self) -> DrawStep | None:
        """The next draws; None at the end."""
        if self.drawn - self.base_drawn >= REBASED:
            self._begin(self.remainder())
        if self._plan.layout.is_single:
            reads, _, samples, _ = self._coming.fitting(_ANY)
            return self._told(reads, samples)
        held = self._admit()
        if not self._count:
            return self._told(held, nothing())
        wanted = max(1, min(AT_ONCE, self._count // SHARE))
        candidates = (randoms(self._stream, self._used, wanted) % np.uint64(self._count)).astype(np.int64)
        self._used += wanted
        _, firsts = np.unique(candidates, return_index=True)
        places = candidates[np.sort(firsts)]  # one that comes again is not there any more
        drawn, slots = self._samples[places], self._slots[places]
        self._remove(places)
        self.drawn += len(drawn)
        return DrawStep(held, drawn, self._release(slots))

    def _told(self, reads: Array, samples: Array) -> DrawStep | None:
        """Reads of which each sample is drawn at once; behind all others, the samples that are repeated."""
        if not len(samples):
            samples = self._coming.again()
        self.drawn += len(samples)
        return DrawStep(reads, samples, reads) if len(samples) else None

    def skip(self, count: int) -> Array:
        """Draw and discard the next ``count`` samples; returns the samples of the same step beyond them."""
        while count > 0 and (step := self.step()) is not None:
            if len(step.drawn) > count:
                return step.drawn[count:]
            count -= len(step.drawn)
        return nothing()

    def remainder(self) -> Remainder:
        """The samples that were not drawn."""
        return self._coming.rest().with_samples(self._samples[: self._count])

    @property
    def held_bytes(self) -> int:
        """The memory that is planned for what is held now."""
        return self._bytes

    def _admit(self) -> Array:
        """Hold the next reads as far as they fit, one at least."""
        most = min(self._memory, self._first + self._mean * self.drawn)
        admitted = [nothing()]
        while True:
            reads, lengths, samples, costs = self._coming.fitting(most - self._bytes, alone=not self._count)
            if not len(reads):
                return np.concatenate(admitted)
            slots = self._slots_for(len(reads))
            self._reads[slots], self._left[slots], self._cost[slots] = reads, lengths, costs // lengths
            self._bytes += int(costs.sum())
            self._append(samples, np.repeat(slots, lengths))
            admitted.append(reads)

    def _slots_for(self, count: int) -> Array:
        if len(self._free) < count:
            had = len(self._left)
            more = max(count, had)
            self._left, self._cost, self._reads = (
                np.concatenate([values, np.zeros(more, np.int64)]) for values in (self._left, self._cost, self._reads)
            )
            self._free += range(had, had + more)
        taken, self._free = self._free[-count:], self._free[:-count]
        return np.array(taken, np.int64)

    def _append(self, samples: Array, slots: Array) -> None:
        end = self._count + len(samples)
        if end > len(self._samples):
            room = np.zeros(end + end // 2 - self._count, np.int64)
            self._samples = np.concatenate([self._samples[: self._count], room])
            self._slots = np.concatenate([self._slots[: self._count], room])
        self._samples[self._count : end], self._slots[self._count : end] = samples, slots
        self._count = end

    def _remove(self, places: Array) -> None:
        """Let go of what stands at these places, and fill them from the end."""
        self._count -= len(places)
        behind = np.ones(len(places), np.bool_)
        behind[places[places >= self._count] - self._count] = False
        holes, kept = places[places < self._count], self._count + np.flatnonzero(behind)
        self._samples[holes], self._slots[holes] = self._samples[kept], self._slots[kept]

    def _release(self, slots: Array) -> Array:
        """The reads whose last sample was drawn, from these slots."""
        touched, counts = np.unique(slots, return_counts=True)
        self._left[touched] -= counts
        self._bytes -= int((counts * self._cost[touched]).sum())
        empty = touched[self._left[touched] == 0]
        self._free += empty.tolist()
        return np.asarray(self._reads[empty])
