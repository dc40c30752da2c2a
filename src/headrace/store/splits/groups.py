"""Groups of rows given to parts whole, so that sizes and class ratios come out as close as the groups allow. Pure.

Where there are many, those with the same classes in the same numbers are dealt out in proportion at once. The rest are
placed one by one, the hardest first, each where it does least harm, and then moved and exchanged as long as that helps.
Harm is the chi-squared distance of the parts' class counts from their shares, averaged over the classes, plus that of
their sizes: rare classes weigh as much as common ones.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.store.splits.frame import Ints
from headrace.store.splits.shares import Shares

Ranks = npt.NDArray[np.uint64]

BUDGET = 1_000_000
"""Steps of the search, a step being one class of one group tried in one part. Counted, not timed: repeatable."""
SHAKES = 200
"""Ways out of a dead end that are tried while the budget lasts."""
FEW = 2000
"""Groups that are all placed one by one."""
ENOUGH = 1e-9
"""Less harm than this is none."""


@dataclass(frozen=True)
class Cells:
    """How many rows of each class each group has: those of group g are ``classes[starts[g]:starts[g + 1]]``."""

    starts: Ints
    classes: Ints
    counts: Ints
    sizes: Ints
    totals: Ints
    """Rows by class."""

    @classmethod
    def of(cls, groups: Ints, classes: Ints) -> "Cells":
        """Of one group number and one class number per row, both without gaps."""
        kinds = int(classes.max()) + 1
        number = int(groups.max()) + 1
        pairs, counts = np.unique(groups * kinds + classes, return_counts=True)
        starts = np.searchsorted(pairs, np.arange(number + 1, dtype=np.int64) * kinds)
        sizes = np.bincount(groups, minlength=number)
        return cls(starts, pairs % kinds, counts, sizes, np.bincount(classes, minlength=kinds))

    def types(self) -> Ints:
        """A number per group that is equal for groups alike."""
        mixed = _mixed(self.classes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + self.counts.astype(np.uint64))
        sums = np.add.reduceat(mixed, self.starts[:-1])
        return np.unique(sums, return_inverse=True)[1].astype(np.int64)

    def hardness(self) -> Ints:
        """How much harm a group can do, in whole numbers, so that the order is the same on any machine."""
        alone = np.floor(self.counts * (self.counts / self.totals[self.classes]) * 65536).astype(np.int64)
        return np.add.reduceat(alone, self.starts[:-1])


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser: sums of what it returns are as good as unique."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def assigned(cells: Cells, ranks: Ranks, shares: Shares) -> Ints:
    """The part of each group. ``ranks`` decides between groups that are alike."""
    few = len(ranks) <= FEW
    parts = np.full(len(ranks), -1, np.int64) if few else _dealt(cells, ranks, shares)
    rest = np.flatnonzero(parts < 0)
    if not len(rest):
        return parts
    search = _Search(cells, rest, parts, shares)
    order = np.lexsort((ranks[rest], -cells.hardness()[rest])).tolist()
    search.place(order)
    search.improve(order, BUDGET // 2)
    _shaken(search, order, _chances(ranks[rest]), BUDGET)
    parts[rest] = search.parts
    return parts


def _shaken(search: "_Search", order: list[int], chances: Iterator[int], budget: int) -> None:
    """Out of a dead end: some groups moved at random, improved again, and undone where that led nowhere better."""
    least, best = search.harm(), list(search.parts)
    end = search.steps + budget
    for number in range(SHAKES):
        if least <= ENOUGH or search.steps >= end or len(search.open) < 2:
            return
        for _ in range(2 + number % 3):
            search.move(next(chances) % len(order), search.open[next(chances) % len(search.open)])
        search.improve(order, (end - search.steps) // 4)
        harm = search.harm()
        if harm < least - ENOUGH:
            least, best = harm, list(search.parts)
        else:
            for group, part in enumerate(best):
                if search.parts[group] != part:
                    search.move(group, part)


def _chances(ranks: Ranks) -> Iterator[int]:
    """Numbers as good as random, the same wherever the ranks are."""
    state = np.bitwise_xor.reduce(ranks, keepdims=True)
    while True:
        state = state + np.uint64(0x9E3779B97F4A7C15)
        yield int(_mixed(state)[0] >> np.uint64(1))


def _dealt(cells: Cells, ranks: Ranks, shares: Shares) -> Ints:
    """The part of each group that can be dealt in proportion to others alike, -1 for the rest."""
    types = cells.types()
    order = np.lexsort((ranks, types))
    many = np.bincount(types)
    dealt = np.zeros((len(many), len(shares) + 1), np.int64)
    for part, weight in enumerate(shares.weights):
        dealt[:, part] = [number * weight // shares.whole for number in many.tolist()]
    dealt[:, -1] = many - dealt[:, :-1].sum(axis=1)
    # Of each kind in turn, first the first part's, then the next one's, and those that are left over at the end.
    pattern = np.tile(np.array([*range(len(shares)), -1]), len(many))
    parts = np.empty(len(types), np.int64)
    parts[order] = np.repeat(pattern, dealt.ravel())
    return parts


class _Search:
    """Some groups on their way to their parts; those already dealt count from the beginning."""

    def __init__(self, cells: Cells, rest: Ints, dealt: Ints, shares: Shares) -> None:
        bounds = zip(cells.starts[rest].tolist(), cells.starts[rest + 1].tolist(), strict=True)
        classes, counts = cells.classes.tolist(), cells.counts.tolist()
        kinds = len(cells.totals)
        self.rows = [
            (*zip(classes[first:end], counts[first:end], strict=True), (kinds, sum(counts[first:end])))
            for first, end in bounds
        ]
        self.parts = [-1] * len(rest)
        self.steps = 0
        of_row = np.repeat(dealt, np.diff(cells.starts))
        totals = [*cells.totals.tolist(), int(cells.sizes.sum())]
        self.open = [part for part, weight in enumerate(shares.weights) if weight]
        self.off: list[list[float]] = []
        self.weight: list[list[float]] = []
        for part, weight in enumerate(shares.weights):
            here = of_row == part
            there = np.bincount(cells.classes[here], cells.counts[here], kinds).astype(np.int64).tolist()
            wanted = [total * weight / shares.whole for total in totals]
            self.off.append([have - want for have, want in zip([*there, sum(there)], wanted, strict=True)])
            # The last place is the size, which weighs as much as all classes together.
            self.weight.append([1 / max(want, 1.0) / kinds for want in wanted[:-1]] + [1 / max(wanted[-1], 1.0)])

    def harm(self) -> float:
        return math.fsum(  # exact: what sum() rounds to depends on the Python
            off * off * weight
            for part in self.open
            for off, weight in zip(self.off[part], self.weight[part], strict=True)
        )

    def _adding(self, row: tuple[tuple[int, int], ...], part: int, sign: int = 1) -> float:
        """How much more harm there is with a group in a part than without it, from the squares' difference alone."""
        off, weight, twice = self.off[part], self.weight[part], 2 * sign
        self.steps += len(row)
        # A loop and not sum(): since Python 3.12 that rounds otherwise, and results are the same on any Python.
        change = 0.0
        for kind, count in row:
            change += count * (twice * off[kind] + count) * weight[kind]
        return change

    def _removing(self, row: tuple[tuple[int, int], ...], part: int) -> float:
        return self._adding(row, part, -1)

    def move(self, group: int, to: int) -> None:
        """``to`` may be -1: nowhere, for a moment."""
        for part, sign in ((self.parts[group], -1), (to, 1)):
            if part >= 0:
                off = self.off[part]
                for kind, count in self.rows[group]:
                    off[kind] += sign * count
        self.parts[group] = to

    def place(self, order: list[int]) -> None:
        """Every group to where it does least harm."""
        for group in order:
            row = self.rows[group]
            self.move(group, min((self._adding(row, part), part) for part in self.open)[1])

    def improve(self, order: list[int], budget: int) -> None:
        """Moves and exchanges until nothing helps or the budget is spent."""
        end = self.steps + budget
        better = len(self.open) > 1
        while better and self.steps < end:
            better = self._moved(order, end)
            better = self._exchanged(order, end) or better

    def _moved(self, order: list[int], end: int) -> bool:
        better = False
        for group in order:
            if self.steps >= end:
                break
            row, here = self.rows[group], self.parts[group]
            gain = self._removing(row, here)
            least, to = min((self._adding(row, part), part) for part in self.open if part != here)
            if gain + least < -ENOUGH:
                self.move(group, to)
                better = True
        return better

    def _exchanged(self, order: list[int], end: int) -> bool:
        """Pairs are tried by their distance in the order of hardness: groups alike first."""
        better = False
        for distance in range(1, len(order)):
            for first, second in zip(order, order[distance:], strict=False):
                if self.steps >= end:
                    return better
                if self.parts[first] != self.parts[second]:
                    better = self._tried(first, second) or better
        return better

    def _tried(self, first: int, second: int) -> bool:
        here, there = self.parts[first], self.parts[second]
        one, other = self.rows[first], self.rows[second]
        change = self._removing(one, here) + self._removing(other, there)
        self.move(first, -1)
        self.move(second, -1)
        change += self._adding(one, there) + self._adding(other, here)
        helps = change < -ENOUGH
        self.move(first, there if helps else here)
        self.move(second, here if helps else there)
        return helps
