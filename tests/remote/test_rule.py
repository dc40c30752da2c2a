"""Local first, simulated: lanes here take the oldest groups, lanes elsewhere as many of the newest as the rule says."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.remote.rules.rates import LocalRates
from headrace.remote.rules.rule import Demand, Means, wanted

STEP = 0.01
SECONDS = 30.0


@dataclass
class Case:
    """A trainer that wants a group every ``step`` seconds; lanes here and elsewhere that take as long for one."""

    step: float
    here: int
    elsewhere: int
    made: float = 0.1
    trip: float = 0.005
    begins: float = 0.0
    ends: float = float("inf")


@dataclass
class Outcome:
    delivered: float
    """Of what the trainer wants, or of what all together can make, whichever is less."""
    share: float
    """Of the groups delivered, those made elsewhere."""
    again: int
    most: int
    """Groups under way elsewhere at once."""


def simulate(case, ahead=4):
    """Groups in order; what is asked for elsewhere and does not come is made here."""
    rates = LocalRates(0.0, 0, 0.0)
    drawn = taken = again = most = made_there = 0
    ready: dict[int, bool] = {}  # number -> whether made elsewhere
    waiting: deque[int] = deque()  # drawn, and to be made here
    here: dict[int, float] = {}  # number -> when it is done
    there: dict[int, float] = {}
    free = [0.0] * case.elsewhere
    waited, wants, now = 0.0, 0.0, 0.0
    while now < SECONDS:
        is_up = case.begins <= now < case.ends
        if not is_up and there and now >= case.ends:
            waiting.extendleft(sorted(there, reverse=True))
            again += len(there)
            there.clear()
        for number in [number for number, done in here.items() if done <= now]:
            del here[number]
            ready[number] = False
            rates.made_here(1.0)
        for number in [number for number, done in there.items() if done <= now]:
            del there[number]
            ready[number] = True
        if now >= wants:
            if taken in ready:
                made_there += ready.pop(taken)
                taken += 1
                wants = max(wants + case.step, now - 2 * STEP)
            else:
                waited += STEP
        rates.look(now, taken, waited)
        lanes = case.elsewhere if is_up else 0
        means = Means(lanes, case.made, case.trip, ahead, 1000)
        asked = wanted(rates.demand(len(ready)), means)
        while is_up and len(there) < asked and drawn > 2 * case.here:
            lane = min(range(lanes), key=free.__getitem__)
            free[lane] = max(free[lane], now + case.trip / 2) + case.made
            there[drawn] = free[lane] + case.trip / 2
            drawn += 1
        while len(waiting) + len(here) < case.here or (not case.here and not lanes):
            if len(ready) > 4 * (case.here + case.elsewhere):
                break
            waiting.append(drawn)
            drawn += 1
        while waiting and len(here) < case.here:
            here[waiting.popleft()] = now + case.made
        most = max(most, len(there))
        now += STEP
    up = min(case.ends, SECONDS) - case.begins
    can = SECONDS * case.here / case.made + up * case.elsewhere / case.made
    return Outcome(taken / min(SECONDS / case.step, can), made_there / max(1, taken), again, most)


class TestSimulated:
    def test_nothing_is_asked_where_the_host_suffices(self):
        outcome = simulate(Case(step=0.2, here=4, elsewhere=16))
        assert outcome.delivered > 0.98
        assert outcome.share < 0.05

    @pytest.mark.parametrize("trip", [0.005, 0.5])
    def test_what_is_short_comes_from_elsewhere(self, trip):
        outcome = simulate(Case(step=0.025, here=2, elsewhere=8, trip=trip))
        assert outcome.delivered > 0.9
        assert 0.3 < outcome.share < 0.75

    def test_lanes_that_come_late_are_used(self):
        assert simulate(Case(step=0.025, here=2, elsewhere=8, begins=8.0)).share > 0.2

    def test_what_is_lost_with_them_is_made_here(self):
        outcome = simulate(Case(step=0.05, here=1, elsewhere=4, ends=10.0))
        assert outcome.delivered * 600 > 0.95 * (10 * 20 + 20 * 10)  # all that is wanted, then all that one lane makes
        assert 0 < outcome.again <= outcome.most


counts = st.integers(0, 50)
seconds = st.floats(1e-4, 10)


demands = st.builds(Demand, st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 1e4), counts)


@given(demands, st.builds(Means, counts, seconds, seconds, counts, counts))
def test_no_more_than_lanes_and_memory_allow(demand, means):
    asked = wanted(demand, means)
    assert 0 <= asked <= means.most
    assert asked <= means.lanes * (2 + means.trip / means.made)


@given(counts, seconds, seconds, counts)
def test_nobody_there_is_asked_for_nothing(ready, made, trip, ahead):
    assert wanted(Demand(100.0, 0.9, 1.0, ready), Means(0, made, trip, ahead, 100)) == 0


def test_a_trainer_that_starves_gets_all_there_is():
    assert wanted(Demand(1.0, 0.99, 1.0, 0), Means(8, 0.1, 0.0, 2, 100)) == 8
    assert wanted(Demand(1.0, 0.99, 1.0, 0), Means(8, 0.1, 0.0, 2, 3)) == 3


class TestRates:
    def test_lanes_nobody_waits_for_may_do_more(self):
        rates = LocalRates(0.0, 0, 0.0)
        rates.made_here(10)
        rates.look(1.0, 10, 0.0)
        for second in range(2, 10):
            rates.made_here(1)
            rates.look(float(second), 10 * second, 0.0)
        assert rates.demand(0).local == 10

    def test_lanes_that_are_waited_for_do_what_they_can(self):
        rates = LocalRates(0.0, 0, 0.0)
        rates.made_here(10)
        rates.look(1.0, 10, 1.0)
        for second in range(2, 20):
            rates.made_here(1)
            rates.look(float(second), 10 * second, float(second))
        assert rates.demand(0).local == pytest.approx(1, abs=0.01)
        assert rates.demand(3) == Demand(pytest.approx(10), pytest.approx(1), rates.demand(0).local, 3)

    def test_a_look_too_soon_changes_nothing(self):
        rates = LocalRates(0.0, 0, 0.0)
        rates.look(0.1, 5, 0.1)
        assert not rates.is_known
