"""Costs of samples, and the threshold above which a sample counts as slow.

Costs are kept as a histogram with eight bins per doubling: nothing is sorted, old costs fade, and a quantile is off by
at most a twelfth. Every sample counts as fast until it is not: without costs there is no threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

BINS = 256
BINS_PER_OCTAVE = 8
FIRST_NS = 1000
EXPECTED_SLOW = 0.25
TOO_MANY = 1.5
"""The threshold falls back to P90 when this many times the expected share is called slow."""
MARGIN = 1.25
"""A sample is not slow unless it costs this much more than the median one, whatever the quantiles say."""
ENOUGH = 16
"""Costs needed before anything is called slow."""
MEMORY = 2048
"""Costs that count; older ones fade when there are more."""


def bin_of(cost_ns: int) -> int:
    """The histogram's bin for a cost."""
    return 0 if cost_ns <= FIRST_NS else min(BINS - 1, int(log2(cost_ns / FIRST_NS) * BINS_PER_OCTAVE))


def upper_edge(cost_bin: int) -> int:
    """The largest cost of a bin, in nanoseconds."""
    return int(FIRST_NS * 2.0 ** ((cost_bin + 1) / BINS_PER_OCTAVE))


def quantile(histogram: Sequence[int], share: float) -> int:
    """A cost that ``share`` of the samples do not exceed; 0 for an empty histogram."""
    wanted = share * sum(histogram)
    seen = 0
    for cost_bin, count in enumerate(histogram):
        seen += count
        if count and seen >= wanted:
            return upper_edge(cost_bin)
    return 0


@dataclass(frozen=True, slots=True)
class Threshold:
    """The cost threshold: from ``cost_ns`` on a sample is slow (0: none is); it stands at ``share`` of the recent
    costs.
    """

    cost_ns: int = 0
    share: float = 1 - EXPECTED_SLOW


def threshold(histogram: Sequence[int], finished: int, slow: int, before: Threshold) -> Threshold:
    """The threshold that follows from recent costs: ``slow`` of ``finished`` samples exceeded the one in force.

    P75, as long as about a quarter is called slow; P90 while it were too many, which happens where P75 lies at the edge
    of a crowd of equal costs; P75 again once hardly any is called slow.
    """
    total = sum(histogram)
    if total < ENOUGH:
        return Threshold(0, before.share)
    share = before.share
    if finished >= ENOUGH:
        called = slow / finished
        if called > TOO_MANY * EXPECTED_SLOW:
            share = 0.9
        elif called < EXPECTED_SLOW / 5:
            share = 1 - EXPECTED_SLOW
    cost = max(quantile(histogram, share), int(MARGIN * quantile(histogram, 0.5)))
    return Threshold(cost, share)


PAYS_NS = 5_000_000
"""Standing in for a lane pays if it takes at least this long to come back: about what starting and stopping cost."""
RETURNS = 4
"""Lanes that must have come back before it is known whether it paid."""


def patience(before: float, returns: int, excess_ns: int) -> float:
    """The factor of the threshold to wait before another lane takes the place of a slow sample's own.

    ``returns`` lanes came back after ``excess_ns`` in all. When that is soon, their samples were not slow: something
    else used the cores for a moment. Where costs are constant, waiting then beats standing in.
    """
    if returns < RETURNS:
        return before
    return min(4.0, before * 1.25) if excess_ns < PAYS_NS * returns else max(1.0, before / 1.25)


def faded(histogram: Sequence[int]) -> list[int] | None:
    """The histogram with its counts halved, once it holds more than ``MEMORY`` costs; else None."""
    if sum(histogram) <= MEMORY:
        return None
    return [(count + 1) // 2 for count in histogram]
