"""Things of different sizes, in the order of their ranks, cut in proportion. Pure."""

import numpy as np
import numpy.typing as npt

from headrace.store.splits.frame import Ints
from headrace.store.splits.shares import Shares

Ranks = npt.NDArray[np.uint64]


def cut(sizes: Ints, kinds: Ints, ranks: Ranks, kind_ranks: Ranks, shares: Shares) -> Ints:
    """The part of each thing: those of a kind lie on a line in the order of their ranks, and the line is cut.

    One thing more or less moves each cut by less than its own size: of things of one size, at most one other changes
    sides there. Kinds of equally many things round up and down by turns, so that sizes come out right, however few
    things a kind has.
    """
    order = np.lexsort((ranks, kinds))
    number = np.bincount(kinds, minlength=len(kind_ranks))
    whole = np.bincount(kinds, sizes, len(kind_ranks))
    ends = np.cumsum(sizes[order])
    of = kinds[order]
    before = np.cumsum(whole) - whole
    middles = (ends - sizes[order] / 2 - before[of]) / whole[of]
    offsets = (_roundings(number, kind_ranks) - 0.5) / np.maximum(number, 1)
    parts = np.zeros(len(sizes), np.int64)
    passed = 0
    for weight in shares.weights:
        passed += weight
        if passed == shares.whole:
            return parts
        parts[order] += middles >= (passed / shares.whole + offsets)[of]
    return parts


def _roundings(number: Ints, kind_ranks: Ranks) -> npt.NDArray[np.float64]:
    """The part of a thing that makes a whole one, by kind: spread evenly from 0 to 1 over kinds of equally many
    things.
    """
    order = np.lexsort((kind_ranks, number))
    _, first, many = np.unique(number[order], return_index=True, return_counts=True)
    found = np.empty(len(number))
    found[order] = (2 * (np.arange(len(number)) - np.repeat(first, many)) + 1) / (2 * np.repeat(many, many))
    return found
