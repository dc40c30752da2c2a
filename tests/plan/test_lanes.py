"""How many lanes, in plants whose best number is known."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan.lanes import Climb, LaneRates, QueueFormula, fullness
from tests.selection import examples

Plant = Callable[[int], LaneRates]
MOST = 64


def plant(
    rate: Callable[[int], float],
    wanted: float,
    cost: float,
    cores: int = 8,
    others: Callable[[int], float] = lambda _: 0,
) -> Plant:
    """Lanes make ``rate(lanes)`` samples per second, the trainer takes ``wanted`` at most.

    A sample takes ``cost`` seconds of a core; ``others``: cores that as many lanes wait for in vain.
    """

    def observe(lanes: int) -> LaneRates:
        delivered = min(rate(lanes), wanted)
        waited = 1 - delivered / wanted
        return LaneRates(
            lanes,
            delivered,
            waited,
            1.0 if waited == 0 else 0.1,
            delivered * cost,
            others(lanes),
            cores,
            affordable=MOST,
        )

    return observe


def io_bound(knee: int, wanted: float = 1e9) -> Plant:
    """Ten milliseconds of waiting a sample, until ``knee`` lanes ask at once."""
    return plant(lambda lanes: 100.0 * min(lanes, knee), wanted, cost=1e-5)


def cpu_bound(cores: int) -> Plant:
    return plant(lambda lanes: 100.0 * min(lanes, cores), 1e9, 0.01, cores, lambda lanes: max(0, lanes - cores))


def mixed(cores: int, share: float) -> Plant:
    """Samples of ten milliseconds that want a core for ``share`` of them."""
    most = cores / share
    return plant(lambda lanes: 100.0 * min(lanes, most), 1e9, 0.01 * share, cores, lambda lanes: max(0.0, lanes - most))


def drive(
    policy: Climb | QueueFormula, plant: Plant, start: int, periods: int = 200, noise: float = 0.0, most: int = MOST
) -> list[int]:
    """The number of lanes in each period."""
    rng, lanes, seen = random.Random(1), start, []
    for _ in range(periods):
        observed = plant(lanes)
        lanes = policy.lanes(replace(observed, rate=observed.rate * rng.uniform(1 - noise, 1 + noise)))
        assert 1 <= lanes <= most
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
    assert sorted(settled)[50] in range(min(start, knee), max(start, int(1.35 * knee) + 1) + 1)
    rate = [min(count, knee) for count in settled]
    assert sum(rate) / len(rate) >= 0.9 * knee
    assert changes(settled) <= 8, "it does not settle"


@pytest.mark.parametrize("cores", [2, 4, 8])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_the_first_step_is_the_whole_way(cores: int, share: float) -> None:
    """What the lanes use of the cores says how many would fill them."""
    most = min(MOST, 8 * cores)
    lanes = drive(Climb(most), mixed(cores, share), cores, periods=40)
    best = min(most, cores / share)
    assert lanes[0] >= 0.9 * best
    assert all(best * 0.9 <= count <= max(best + 1, 1.5 * best) for count in lanes)
    assert changes(lanes) <= 4


@given(
    cores=st.sampled_from([1, 2, 4, 8, 16]),
    knee=st.integers(1, 150),
    affordable=st.integers(1, 200),
    most=st.sampled_from([16, 64, 128]),
)
@settings(max_examples=examples(100))
def test_idle_cores_get_lanes_while_it_pays_and_memory_allows(
    cores: int, knee: int, affordable: int, most: int
) -> None:
    """However many there are for each core. A step doubles, so up to twice as many as are of use may stay."""
    observe = plant(lambda lanes: 100.0 * min(lanes, knee), 1e9, cost=1e-5, cores=cores)
    lanes = drive(Climb(most), lambda count: replace(observe(count), affordable=affordable), cores, 60, most=most)
    bound = max(1, min(most, affordable))
    assert max(lanes) <= bound
    settled = lanes[30:]
    rate = sum(min(count, knee) for count in settled) / len(settled)
    assert rate >= 0.85 * min(bound, knee)
    assert max(lanes) <= max(8 * cores, 4 * knee)
    assert sorted(settled)[len(settled) // 2] <= max(cores, 2 * knee)


def test_a_step_goes_as_far_as_the_trainer_wants() -> None:
    lanes = drive(Climb(MOST), io_bound(MOST, wanted=1000.0), 4, periods=20)
    assert lanes[0] == 10
    assert max(lanes) <= 11


def test_a_leap_beyond_the_knee_is_taken_back_to_it() -> None:
    lanes = drive(Climb(MOST), io_bound(6), 4, periods=12)
    assert lanes[0] == 32
    assert 6 <= lanes[1] <= 8
    assert set(lanes[1:6]) == {lanes[1]}


@pytest.mark.parametrize("cores", [2, 8])
def test_lanes_that_samples_no_longer_wait_with_are_given_up(cores: int) -> None:
    """A loader that goes on with the lanes of an earlier one meets samples that compute."""
    lanes = drive(Climb(MOST), cpu_bound(cores), 8 * cores, periods=20)
    assert lanes[-1] <= 1.5 * cores
    assert changes(lanes) <= 2


def test_others_on_the_machine_are_no_reason_to_add_lanes() -> None:
    def crowded(lanes: int) -> LaneRates:
        return replace(cpu_bound(2)(lanes), running=0.4, queued=lanes - 0.4)

    assert set(drive(Climb(MOST), crowded, 2)) == {2}


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
def test_lanes_are_given_up_while_the_trainer_never_waits(needed: int) -> None:
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
def test_memory_is_a_limit(policy: Climb | QueueFormula) -> None:
    def observe(lanes: int) -> LaneRates:
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
    observed = LaneRates(10, 0.0, 0.0, occupancy, 16 * cpu, 0.0, 16, MOST)
    assert QueueFormula(MOST).lanes(observed) == 10 + step


@pytest.mark.parametrize(("alpha", "beta", "step"), [(100.0, 0.0, 2), (0.0, 100.0, -2), (1.0, 1.0, 0)])
def test_the_published_formula_is_clipped(alpha: float, beta: float, step: int) -> None:
    observed = LaneRates(10, 0.0, 0.0, 0.5, 3.2, 0.0, 16, MOST)
    assert QueueFormula(MOST, alpha=alpha, beta=beta).lanes(observed) == 10 + step


def test_the_published_formula_adds_lanes_to_busy_cores() -> None:
    """Which is why it is not the default."""
    assert drive(QueueFormula(MOST), cpu_bound(4), 4)[-1] == MOST


@pytest.mark.parametrize(
    ("lanes", "ran", "queued", "full"),
    [
        (8, 8.0, 0.0, 1.0),
        (8, 2.0, 6.0, 1.0),  # somebody else has the cores: eight more would only take from him
        (16, 2.0, 1.0, 0.25),  # they sleep most of the time
        (4, 4.0, 0.0, 0.5),  # four cores are idle
    ],
)
def test_lanes_that_want_nothing_but_a_core_have_no_use_for_more(
    lanes: int, ran: float, queued: float, full: float
) -> None:
    assert fullness(lanes, ran, queued, 8) == full


@pytest.mark.parametrize("lanes", [1, MOST])
def test_the_published_formula_has_bounds(lanes: int) -> None:
    occupancy, running, affordable = (1.0, 0.0, MOST) if lanes == 1 else (0.0, 16.0, 2 * MOST)
    pushed = LaneRates(lanes, 0.0, 0.0, occupancy, running, 0.0, 16, affordable)
    assert QueueFormula(MOST).lanes(pushed) == lanes
