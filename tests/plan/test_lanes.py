"""How many lanes, in plants whose best number is known."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.plan.lanes import Climb, LanePolicy, Observed, QueueFormula

Plant = Callable[[int], Observed]
MOST = 64


def plant(rate: Callable[[int], float], wanted: float, cpu: Callable[[int], float] = lambda _: 0.2) -> Plant:
    """Lanes make ``rate(lanes)`` samples per second, the consumer takes ``wanted`` at most."""

    def observe(lanes: int) -> Observed:
        delivered = min(rate(lanes), wanted)
        waited = 1 - delivered / wanted
        return Observed(lanes, delivered, waited, 1.0 if waited == 0 else 0.1, min(1.0, cpu(lanes)), affordable=MOST)

    return observe


def io_bound(knee: int, wanted: float = 1e9) -> Plant:
    return plant(lambda lanes: 100.0 * min(lanes, knee), wanted)


def cpu_bound(cores: int) -> Plant:
    return plant(lambda lanes: 100.0 * min(lanes, cores), 1e9, lambda lanes: lanes / cores)


def drive(policy: LanePolicy, plant: Plant, start: int, periods: int = 200, noise: float = 0.0) -> list[int]:
    """The number of lanes in each period."""
    rng, lanes, seen = random.Random(1), start, []
    for _ in range(periods):
        observed = plant(lanes)
        lanes = policy.lanes(replace(observed, rate=observed.rate * rng.uniform(1 - noise, 1 + noise)))
        assert 1 <= lanes <= MOST
        seen.append(lanes)
    return seen


def changes(lanes: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(lanes))


each_start = pytest.mark.parametrize("start", [1, 4, 8])


@each_start
@pytest.mark.parametrize("knee", [2, 6, 16, 48])
def test_lanes_rise_to_the_knee(knee: int, start: int) -> None:
    lanes = drive(Climb(MOST), io_bound(knee), start)
    settled = lanes[100:]
    assert sorted(settled)[50] in range(min(start, knee), max(start, int(1.3 * knee)) + 1)
    rate = [min(count, knee) for count in settled]
    assert sum(rate) / len(rate) >= 0.9 * knee
    assert changes(settled) <= 8, "it does not settle"


@each_start
def test_lanes_stop_at_the_ceiling(start: int) -> None:
    lanes = drive(Climb(24), io_bound(1000), start)
    assert max(lanes) == lanes[-1] == 24
    assert changes(lanes[100:]) == 0


@each_start
@pytest.mark.parametrize("cores", [2, 4, 8])
def test_busy_cores_get_no_more_lanes(cores: int, start: int) -> None:
    lanes = drive(Climb(MOST), cpu_bound(cores), start)
    assert lanes[-1] <= max(start, int(1.3 * cores))
    assert min(lanes[-1], cores) >= 0.75 * cores
    assert changes(lanes[100:]) <= 8


@pytest.mark.parametrize("needed", [1, 3, 10])
def test_lanes_are_given_up_while_the_consumer_never_waits(needed: int) -> None:
    lanes = drive(Climb(MOST), io_bound(MOST, wanted=100.0 * needed), 16, periods=400)
    assert abs(sorted(lanes[300:])[50] - needed) <= 1
    assert min(lanes[300:]) >= max(1, needed - 1)
    assert changes(lanes[200:]) <= 12, "a lane is given up again and again"


@each_start
@pytest.mark.parametrize("knee", [6, 16])
def test_noise_is_no_reason_to_move_for_ever(knee: int, start: int) -> None:
    lanes = drive(Climb(MOST), io_bound(knee), start, periods=400, noise=0.03)
    settled = lanes[200:]
    assert sum(min(count, knee) for count in settled) / len(settled) >= 0.85 * knee
    assert max(settled) <= max(start, 3 * knee)
    assert changes(settled) <= 40


@pytest.mark.parametrize("policy", [Climb(MOST), QueueFormula(MOST)], ids=["climb", "formula"])
def test_memory_is_a_limit(policy: LanePolicy) -> None:
    def observe(lanes: int) -> Observed:
        return replace(io_bound(1000)(lanes), affordable=5)

    lanes = drive(policy, observe, 12, periods=60)
    assert max(lanes) == 5
    assert drive(policy, lambda lanes: replace(observe(lanes), affordable=0), 5, periods=5)[-1] == 1


def test_a_step_that_does_not_pay_is_tried_ever_more_rarely() -> None:
    lanes = drive(Climb(MOST), io_bound(4), 4, periods=400)
    tries = [period for period, (a, b) in enumerate(itertools.pairwise(lanes)) if b > a]
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 10
    assert gaps[-1] >= Climb.PATIENCE


def test_a_knee_that_moves_is_found_again() -> None:
    policy = Climb(MOST)
    before = drive(policy, io_bound(4), 4, periods=100)
    after = drive(policy, io_bound(16), before[-1], periods=300)
    assert after[-1] >= 14


@pytest.mark.parametrize(
    ("occupancy", "cpu", "step"),
    [
        # twice the share not occupied and twice what the CPU use is above 0.7, rounded
        (0.0, 0.7, 2),
        (0.0, 1.0, 2),
        (0.0, 0.2, 1),
        (0.5, 0.7, 1),
        (0.5, 0.95, 2),
        (0.5, 0.2, 0),
        (1.0, 0.7, 0),
        (1.0, 1.0, 1),
        (1.0, 0.4, -1),
        (1.0, 0.0, -1),
        (0.9, 0.0, -1),
    ],
)
def test_the_published_formula(occupancy: float, cpu: float, step: int) -> None:
    observed = Observed(10, 0.0, 0.0, occupancy, cpu, MOST)
    assert QueueFormula(MOST).lanes(observed) == 10 + step


@pytest.mark.parametrize(("alpha", "beta", "step"), [(100.0, 0.0, 2), (0.0, 100.0, -2), (1.0, 1.0, 0)])
def test_the_published_formula_is_clipped(alpha: float, beta: float, step: int) -> None:
    observed = Observed(10, 0.0, 0.0, 0.5, 0.2, MOST)
    assert QueueFormula(MOST, alpha=alpha, beta=beta).lanes(observed) == 10 + step


def test_the_published_formula_adds_lanes_to_busy_cores() -> None:
    """Which is why it is not the default."""
    assert drive(QueueFormula(MOST), cpu_bound(4), 4)[-1] == MOST


@pytest.mark.parametrize("lanes", [1, MOST])
def test_the_published_formula_has_bounds(lanes: int) -> None:
    pushed = Observed(lanes, 0.0, 0.0, 1.0, 0.0, MOST) if lanes == 1 else Observed(lanes, 0.0, 0.0, 0.0, 1.0, 2 * MOST)
    assert QueueFormula(MOST).lanes(pushed) == lanes
