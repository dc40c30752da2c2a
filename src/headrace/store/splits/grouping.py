"""Groups of rows given to parts whole: cut in the order of their ranks, then moved where that helps. Pure.

A group's home is where the cut puts it, which other groups hardly change. Where sizes or class ratios still come out
wrong, because groups are large, unequal or of mixed classes, groups are moved, those first that can do most harm, until
no move is worth it: it has to make good for a whole group of the usual size, or others would move when one goes.

Harm is the chi-squared distance of the parts' class counts from their shares, averaged over the classes, plus that of
their sizes: rare classes weigh as much as common ones.
"""

import math
from dataclasses import dataclass

import numpy as np

from headrace.store.splits.cut import Ranks, cut
from headrace.store.splits.frame import Ints
from headrace.store.splits.shares import Shares

BUDGET = 1_000_000
"""Steps of the search, a step being one class of one group tried in one part. Counted, not timed: repeatable."""
ENOUGH = 1e-9
"""Less harm than this is none."""


@dataclass(frozen=True)
class Cells:
    """The number of rows of each class in each group: those of group g are ``classes[starts[g]:starts[g + 1]]``."""

    starts: Ints
    classes: Ints
    counts: Ints
    sizes: Ints
    totals: Ints
    """Rows by class."""

    @classmethod
    def of(cls, groups: Ints, classes: Ints) -> "Cells":
        """Cells of one group number and one class number per row, both without gaps."""
        kinds = int(classes.max()) + 1
        number = int(groups.max()) + 1
        pairs, counts = np.unique(groups * kinds + classes, return_counts=True)
        starts = np.searchsorted(pairs, np.arange(number + 1, dtype=np.int64) * kinds)
        sizes = np.bincount(groups, minlength=number)
        return cls(starts, pairs % kinds, counts, sizes, np.bincount(classes, minlength=kinds))

    def leading(self) -> Ints:
        """The class in which a group weighs most, by its rows there and by its part of the class."""
        group = np.repeat(np.arange(len(self.sizes)), np.diff(self.starts))
        order = np.lexsort((self.classes, -self._alone(), group))
        return self.classes[order[self.starts[:-1]]]

    def hardness(self) -> Ints:
        """The harm that each group can do."""
        return np.add.reduceat(self._alone(), self.starts[:-1])

    def _alone(self) -> Ints:
        """The harm by class, in whole numbers, so that the order is the same on any machine."""
        return np.floor(self.counts * (self.counts / self.totals[self.classes]) * 65536).astype(np.int64)


def assigned(cells: Cells, ranks: Ranks, class_ranks: Ranks, shares: Shares, fixed: Ints | None = None) -> Ints:
    """The part of each group. ``ranks`` and ``class_ranks`` are as good as random; ``fixed`` has parts, -1 is free."""
    fixed = np.full(len(ranks), -1, np.int64) if fixed is None else fixed
    free = np.flatnonzero(fixed < 0)
    parts = fixed.copy()
    parts[free] = cut(cells.sizes[free], cells.leading()[free], ranks[free], class_ranks, shares)
    order = free[np.lexsort((ranks[free], -cells.hardness()[free]))]
    search = Search(cells, parts, shares)
    search.improve(order.tolist(), BUDGET)
    return search.parts


class Search:
    """Groups that are moved from part to part, and how far the parts are from their shares."""

    def __init__(self, cells: Cells, parts: Ints, shares: Shares) -> None:
        kinds = len(cells.totals)
        self._cells, self.parts, self._size = cells, parts, kinds
        self._steps = 0
        self._usual = [*(cells.totals / np.bincount(cells.classes, minlength=kinds)).tolist(), cells.sizes.mean()]
        of_cell = np.repeat(parts, np.diff(cells.starts))
        totals = [*cells.totals.tolist(), int(cells.sizes.sum())]
        self._open = [part for part, weight in enumerate(shares.weights) if weight]
        self._off: list[list[float]] = []
        self._weight: list[list[float]] = []
        for part, weight in enumerate(shares.weights):
            here = of_cell == part
            there = np.bincount(cells.classes[here], cells.counts[here], kinds).astype(np.int64).tolist()
            wanted = [total * weight / shares.whole for total in totals]
            self._off.append([have - want for have, want in zip([*there, sum(there)], wanted, strict=True)])
            # The last place is the size, which weighs as much as all classes together.
            self._weight.append([1 / max(want, 1.0) / kinds for want in wanted[:-1]] + [1 / max(wanted[-1], 1.0)])

    def harm(self) -> float:
        """The distance of the parts from their shares."""
        return math.fsum(  # exact: what sum() rounds to depends on the Python
            off * off * weight
            for part in self._open
            for off, weight in zip(self._off[part], self._weight[part], strict=True)
        )

    def improve(self, order: list[int], budget: int) -> None:
        """Move groups until no move is worth it or the budget is spent."""
        better = len(self._open) > 1
        while better and self._steps < budget:
            better = False
            for group in order:
                if self._steps >= budget:
                    return
                better = self._moved(group) or better

    def _moved(self, group: int) -> bool:
        row, here = self._row(group), int(self.parts[group])
        gain = self._change(row, here, -1)
        least, to = min((self._change(row, part, 1), part) for part in self._open if part != here)
        if gain + least >= -ENOUGH:
            return False
        for part, sign in ((here, -1), (to, 1)):
            for kind, count in row:
                self._off[part][kind] += sign * count
        self.parts[group] = to
        return True

    def _row(self, group: int) -> list[tuple[int, int]]:
        first, end = self._cells.starts[group], self._cells.starts[group + 1]
        counts = self._cells.counts[first:end].tolist()
        return [*zip(self._cells.classes[first:end].tolist(), counts, strict=True), (self._size, sum(counts))]

    def _change(self, row: list[tuple[int, int]], part: int, sign: int) -> float:
        """The harm that a group does by coming into a part (1) or leaving it (-1), and what that would have to
        save.

        The harm is the squares' difference alone. To be saved is as much as a group does alone, a usual one at most.
        """
        off, weight, usual, twice = self._off[part], self._weight[part], self._usual, 2 * sign
        self._steps += len(row)
        # A loop and not sum(): since Python 3.12 that rounds otherwise, and results are the same on any Python.
        change = 0.0
        for kind, count in row:
            change += count * (twice * off[kind] + count + min(count, usual[kind])) * weight[kind]
        return change
