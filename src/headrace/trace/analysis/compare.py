"""Two traces side by side: what differs, and whether more than the runs vary within themselves. Pure.

Batches and samples that follow each other are alike, so they are no independent observations. Each quantity is cut into
blocks of neighbours; the blocks' means are what is compared (Welch's interval).
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from headrace.core.errors import TraceError
from headrace.trace.analysis.batches import delivered, following
from headrace.trace.analysis.operation_times import by_operation
from headrace.trace.analysis.select import loaders, of_runs
from headrace.trace.analysis.spread import SECOND
from headrace.trace.reader import Table, Trace

BLOCKS = 20
FEWEST = 4
"""Blocks below which nothing is said."""
CONFIDENCE = 0.99
SMALLEST = 0.01
"""Relative difference below which none is reported, however sure it is."""


@dataclass(frozen=True)
class Difference:
    """A quantity in both traces: its means, the relative change from first to second, and the change's interval.

    The change has no value where the first is zero.
    """

    name: str
    unit: str
    """"s": seconds; "1/s": samples a second."""
    first: float
    second: float
    change: float | None
    low: float | None
    high: float | None
    seen: bool | None
    """Whether they differ by more than noise; None where there is too little to tell."""

    @property
    def words(self) -> str:
        if self.seen is None:
            return "too few to tell"
        if not self.seen:
            return "no difference seen"
        return "new" if self.change is None else f"{self.change:+.1%}"


@dataclass(frozen=True)
class LoaderComparison:
    """All quantities of a loader that both traces have, and the names of those that only one has."""

    loader: str
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@dataclass(frozen=True)
class TraceComparison:
    """All loaders that both traces have."""

    first: str
    second: str
    confidence: float
    loaders: tuple[LoaderComparison, ...]

    def data(self) -> dict[str, Any]:
        data = asdict(self)
        for loader, plain in zip(self.loaders, data["loaders"], strict=True):
            for one, values in zip(loader.differences, plain["differences"], strict=True):
                values["words"] = one.words
        return data


def compare(first: Trace, second: Trace) -> TraceComparison:
    """The differences between two traces. Raises ``TraceError`` when they have no loader in common."""
    mine, other = _by_name(first), _by_name(second)
    if len(mine) == len(other) == 1:  # whatever they are called
        pairs = [(name, mine[name], other[theirs]) for name, theirs in zip(mine, other, strict=True)]
    else:
        pairs = [(name, mine[name], other[name]) for name in mine if name in other]
    if not pairs:
        names = (", ".join(found) or "none" for found in (mine, other))
        raise TraceError("{} and {} have no loader in common ({}; {})".format(first.path, second.path, *names))
    found = tuple(_compared(name, of_runs(first, left), of_runs(second, right)) for name, left, right in pairs)
    return TraceComparison(first.path, second.path, CONFIDENCE, found)


def _by_name(trace: Trace) -> dict[str, list[int]]:
    """Runs by the name of their loader; several processes may have one of that name."""
    found: dict[str, list[int]] = {}
    for loader in loaders(trace):
        found.setdefault(loader.name, []).extend(loader.runs)
    return found


def _compared(name: str, first: Trace, second: Trace) -> LoaderComparison:
    mine, other = dict(_quantities(first)), dict(_quantities(second))
    both = tuple(difference(*known, mine[known], other[known]) for known in mine if known in other)
    only_first, only_second = (
        tuple(known[0] for known in these if known not in those) for these, those in ((mine, other), (other, mine))
    )
    return LoaderComparison(name, both, only_first, only_second)


def difference(name: str, unit: str, first: Table, second: Table) -> Difference:
    """Two series of one quantity, in the order of time; a rate is given as (time, samples) columns."""
    left, right = _means(first), _means(second)
    means = _mean(first), _mean(second)
    if min(len(left), len(right)) < FEWEST:
        return Difference(name, unit, *means, None, None, None, None)
    change, half = means[1] - means[0], _half_width(left, right)
    if not means[0]:
        return Difference(name, unit, *means, None, None, None, abs(change) > half)
    low, high = (change - half) / means[0], (change + half) / means[0]
    seen = (low > 0 or high < 0) and abs(change / means[0]) >= SMALLEST
    return Difference(name, unit, *means, change / means[0], low, high, seen)


def _quantities(trace: Trace) -> Iterator[tuple[tuple[str, str], Table]]:
    batches = delivered(trace)
    before, after = following(batches)
    made = batches[batches["made"]]
    gaps = np.column_stack([(after["got"] - before["got"]) / SECOND, after["samples"]])
    yield ("throughput", "1/s"), gaps
    yield ("wait", "s"), after["wait"] / SECOND
    yield ("delay", "s"), after["delay"][after["made"]] / SECOND
    yield ("trainer's step", "s"), (after["asked"] - before["got"]) / SECOND
    yield ("batch preprocessing", "s"), made["work"] / SECOND
    yield ("batch, first sample to ready", "s"), (made["ready"] - made["begun"]) / SECOND
    firsts = np.append(True, batches["run"][1:] != batches["run"][:-1]) if len(batches) else np.empty(0, bool)
    yield ("first batch of an epoch", "s"), batches["wait"][firsts] / SECOND
    for name, calls in (("sample", trace.samples), *((f"operation {n}", c) for n, c in by_operation(trace))):
        yield (name, "s"), calls["elapsed"][np.argsort(calls["start"])] / SECOND


def _mean(values: Table) -> float:
    if not len(values):
        return 0.0
    if values.ndim == 2:
        time, count = values.sum(axis=0).tolist()
        return float(count / time) if time else 0.0
    return float(values.mean())


def _means(values: Table) -> Table:
    """Means of blocks of neighbours."""
    blocks = min(BLOCKS, len(values) // 2)
    return np.array([_mean(block) for block in np.array_split(values, blocks)] if blocks else [])


def _half_width(left: Table, right: Table) -> float:
    """Half the width of Welch's interval for the difference of two means."""
    a, b = float(left.var(ddof=1)) / len(left), float(right.var(ddof=1)) / len(right)
    if a + b == 0:
        return 0.0
    freedom = (a + b) ** 2 / (a**2 / (len(left) - 1) + b**2 / (len(right) - 1))
    return quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(a + b)


def quantile(probability: float, freedom: float) -> float:
    """Student's t, by its expansion in powers of 1/freedom; within 2 % for four degrees of freedom and more."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
