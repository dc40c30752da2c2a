"""How many tickets a lane takes at once."""

import pytest

from headrace.sched.lanes.lane_messages import TakeRule, TakeSize
from headrace.sched.lanes.pace import Pace

MICRO, MILLI = 1_000, 1_000_000


def paced(rule: TakeRule, *chunks: tuple[int, int], lanes: int = 2) -> TakeSize:
    """After chunks whose samples took so many nanoseconds each, the worst so many."""
    pace = Pace(rule, lanes)
    for cost, worst in chunks:
        pace.note(cost, worst)
    return pace.size()


@pytest.mark.parametrize("rule", list(TakeRule))
def test_one_at_a_time_while_nothing_is_known(rule: TakeRule) -> None:
    assert paced(rule) == TakeSize(rule)


@pytest.mark.parametrize(
    ("cost", "worst", "chunk", "least"),
    [
        (100 * MICRO, 100 * MICRO, 160, 5),
        (100 * MICRO, 399 * MICRO, 160, 5),
        (100 * MICRO, 400 * MICRO, 5, 5),
        (MILLI, MILLI, 16, 0),
        (MILLI, 4 * MILLI, 0, 0),
        (20 * MILLI, 20 * MILLI, 0, 0),
    ],
    ids=["even", "nearly even", "one was slow", "a millisecond each", "not each", "dear"],
)
def test_cheap_samples_are_taken_several_at_a_time(cost: int, worst: int, chunk: int, least: int) -> None:
    assert paced(TakeRule.CHUNKS, (cost, worst)) == TakeSize(TakeRule.CHUNKS, chunk, 2, least)


def test_a_slow_sample_is_forgotten() -> None:
    slow, even = (100 * MICRO, 500 * MICRO), (100 * MICRO, 100 * MICRO)
    assert paced(TakeRule.CHUNKS, slow, even).chunk == 5
    assert paced(TakeRule.CHUNKS, slow, *[even] * 20).chunk == 160


def test_writing_counts_as_well() -> None:
    """Large samples that exist already: whoever is woken for a batch of them copies for milliseconds."""
    pace = Pace(TakeRule.CHUNKS, 2)
    pace.note(MICRO, MICRO)
    assert pace.size().least == 500
    for _ in range(50):
        pace.wrote(99 * MICRO)
    assert pace.size() == TakeSize(TakeRule.CHUNKS, 160, 2, 5)


def test_small_batches_are_made_by_one_lane() -> None:
    assert paced(TakeRule.WHOLE, (MILLI, 0)).whole == 20
    assert paced(TakeRule.CHUNKS, (MILLI, 0)).whole == 0


def test_a_few_lanes_share_a_group() -> None:
    assert [paced(TakeRule.CHUNKS, (MILLI, 0), lanes=lanes).share for lanes in (1, 3, 16)] == [1, 3, 4]
