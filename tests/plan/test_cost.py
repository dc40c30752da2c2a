"""From which cost on a sample is slow."""

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan import cost
from headrace.plan.cost import Threshold

MS = 1_000_000
Draw = Callable[[random.Random], float]


def between(*points: tuple[float, float]) -> Draw:
    """Costs in milliseconds with these quantiles, (share, cost), and straight lines between them."""
    shares, costs = zip(*points, strict=True)
    return lambda rng: float(np.interp(rng.random(), shares, costs))


def either(share: float, costs: tuple[float, float], noise: float = 0.0) -> Draw:
    return lambda rng: costs[rng.random() >= share] * rng.uniform(1 - noise, 1 + noise)


# As published for the workloads of MinatoLoader (its Table 2).
DETECTION = between((0, 11), (0.5, 28), (0.75, 30), (0.9, 35), (1, 176))
SEGMENTATION = between((0, 10), (0.5, 470), (0.75, 630), (0.9, 750), (1, 2230))
SPEECH_3S = either(0.8, (508, 3008), 0.01)
SPEECH_10S = either(0.8, (508, 10_008), 0.01)


class Observer:
    """Keeps the histogram as the engine does."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.histogram = [0] * cost.BINS
        self.finished = self.slow = 0
        self.threshold = Threshold()
        self.called: list[bool] = []

    def see(self, costs: Iterable[float], every: int = 32) -> Threshold:
        """Milliseconds; a new threshold after every so many."""
        for number, milliseconds in enumerate(costs, 1):
            nanoseconds = int(milliseconds * MS)
            self.histogram[cost.bin_of(nanoseconds)] += 1
            self.finished += 1
            called = 0 < self.threshold.cost_ns < nanoseconds
            self.slow += called
            self.called.append(called)
            if number % every == 0:
                self._rethink()
        return self.threshold

    def _rethink(self) -> None:
        self.threshold = cost.threshold(self.histogram, self.finished, self.slow, self.threshold)
        if self.finished >= cost.MEMORY // 8:
            self.finished = self.slow = 0
        self.histogram = cost.faded(self.histogram) or self.histogram

    def draw(self, costs: Draw, count: int = 2000) -> Threshold:
        return self.see(costs(self.rng) for _ in range(count))

    def share(self, last: int = 1000) -> float:
        """Of the last samples, how many were called slow."""
        return sum(self.called[-last:]) / last


@pytest.mark.parametrize(
    ("costs", "at", "share"),
    [
        (DETECTION, (34, 39), (0.05, 0.13)),  # a quarter costs more than P75, but hardly more than the median
        (SEGMENTATION, (580, 690), (0.18, 0.27)),
        (SPEECH_3S, (508, 700), (0.17, 0.23)),
        (SPEECH_10S, (508, 700), (0.17, 0.23)),
    ],
    ids=["detection", "segmentation", "speech 3 s", "speech 10 s"],
)
def test_published_workloads(costs: Draw, at: tuple[float, float], share: tuple[float, float]) -> None:
    observer = Observer()
    threshold = observer.draw(costs, 4000)
    assert at[0] * MS <= threshold.cost_ns <= at[1] * MS
    assert share[0] <= observer.share() <= share[1]


@pytest.mark.parametrize("milliseconds", [0.01, 1, 30, 5000])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_of_equals_nobody_is_slow(milliseconds: float, noise: float) -> None:
    observer = Observer()
    observer.draw(either(1, (milliseconds, 0), noise), 3000)
    assert not any(observer.called)


@pytest.mark.parametrize("slow", [0.01, 0.05, 0.2])
def test_of_two_kinds_the_dear_one_is_slow(slow: float) -> None:
    observer = Observer()
    threshold = observer.draw(either(1 - slow, (10, 200), 0.02), 3000)
    assert 10.2 * MS < threshold.cost_ns < 196 * MS
    assert observer.share() == pytest.approx(slow, abs=0.04)


@pytest.mark.parametrize(("before", "after"), [(10, 40), (40, 10), (10, 11), (1000, 2)])
def test_the_threshold_follows_within_its_memory(before: float, after: float) -> None:
    observer = Observer()
    observer.draw(either(1, (before, 0), 0.05), 3 * cost.MEMORY)
    threshold = observer.draw(either(1, (after, 0), 0.05), 2 * cost.MEMORY)
    assert after * MS < threshold.cost_ns < 1.5 * after * MS
    assert observer.share(cost.MEMORY // 2) == 0


def test_nobody_is_slow_before_enough_is_known() -> None:
    histogram = [0] * cost.BINS
    histogram[100] = cost.ENOUGH - 1
    assert cost.threshold(histogram, cost.ENOUGH - 1, 0, Threshold()) == Threshold(0)
    histogram[200] = 1
    assert 0 < cost.threshold(histogram, cost.ENOUGH, 0, Threshold()).cost_ns < cost.upper_edge(199)


def test_where_too_many_were_called_slow_it_falls_back_and_returns() -> None:
    histogram = [0] * cost.BINS
    histogram[50], histogram[60], histogram[70] = 60, 25, 15
    usual = cost.threshold(histogram, 0, 0, Threshold())
    assert (usual.cost_ns, usual.share) == (cost.upper_edge(60), 0.75)
    for called in (5, 25, 37):
        assert cost.threshold(histogram, 100, called, usual) == usual
    fallen = cost.threshold(histogram, 100, 38, usual)
    assert (fallen.cost_ns, fallen.share) == (cost.upper_edge(70), 0.9)
    assert cost.threshold(histogram, 100, 10, fallen) == fallen, "P90 calls a tenth slow: no reason to go back"
    assert cost.threshold(histogram, 100, 5, fallen) == fallen
    assert cost.threshold(histogram, 100, 4, fallen) == usual
    assert cost.threshold(histogram, cost.ENOUGH - 1, 15, usual) == usual, "too few to tell"


@given(
    costs=st.lists(st.integers(cost.FIRST_NS, 100_000 * MS), min_size=1, max_size=300),
    share=st.floats(0.01, 1),
)
def test_a_quantile_is_off_by_less_than_a_bin(costs: list[int], share: float) -> None:
    histogram = [0] * cost.BINS
    for nanoseconds in costs:
        histogram[cost.bin_of(nanoseconds)] += 1
    exact = np.quantile(costs, share, method="inverted_cdf")
    assert exact * (1 - 1e-9) - 1 <= cost.quantile(histogram, share) <= exact * 2 ** (1 / cost.BINS_PER_OCTAVE) + 1


@given(st.integers(0, 1 << 62))
def test_every_cost_has_a_bin(nanoseconds: int) -> None:
    cost_bin = cost.bin_of(nanoseconds)
    assert 0 <= cost_bin < cost.BINS
    if cost_bin < cost.BINS - 1:
        assert nanoseconds <= cost.upper_edge(cost_bin) + 1
    assert cost_bin == 0 or nanoseconds >= cost.upper_edge(cost_bin - 1) * (1 - 1e-9) - 1


def test_no_costs_no_quantile() -> None:
    assert cost.quantile([0] * cost.BINS, 0.5) == 0


@given(st.lists(st.integers(0, 500), min_size=cost.BINS, max_size=cost.BINS))
def test_what_is_old_fades(histogram: list[int]) -> None:
    faded = cost.faded(histogram)
    if sum(histogram) <= cost.MEMORY:
        assert faded is None
        return
    assert faded is not None
    assert [count > 0 for count in faded] == [count > 0 for count in histogram]
    assert all(count / 2 <= left <= (count + 1) / 2 for count, left in zip(histogram, faded, strict=True))


def test_the_histogram_stays_small() -> None:
    observer = Observer()
    observer.draw(SEGMENTATION, 20_000)
    assert sum(observer.histogram) <= cost.MEMORY + cost.BINS


def test_lanes_that_come_back_at_once_are_waited_for():
    soon, late = 4 * cost.PAYS_NS - 1, 4 * cost.PAYS_NS
    assert cost.patience(1.0, 3, 0) == 1.0, "too few to tell"
    assert cost.patience(1.0, 4, late) == 1.0
    factor = 1.0
    for _ in range(20):
        assert 1.0 < cost.patience(factor, 4, soon) <= 4.0
        factor = cost.patience(factor, 4, soon)
    assert factor == 4.0
    for _ in range(20):
        factor = cost.patience(factor, 4, late)
    assert factor == 1.0
