"""Every stream's batches come out once and in its own order, whatever dies."""

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.sched import words as W
from headrace.sched.moves import Next
from headrace.sched.streams import ConsumerStreams, LaneStream
from tests.sched.memory import Words
from tests.sched.stream_model import DIMS, LANES, StreamPlan, StreamWorld

QUICKLY = settings(
    max_examples=250,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),  # explaining takes minutes
    suppress_health_check=list(HealthCheck),
)
plans = st.builds(
    StreamPlan,
    lengths=st.tuples(*[st.integers(0, 6)] * LANES),
    ahead=st.integers(1, 4),
    in_order=st.booleans(),
)


@QUICKLY
@given(
    plan=st.lists(plans, min_size=1, max_size=3),
    kills=st.dictionaries(st.integers(0, 150), st.integers(0, 12), max_size=6),
    stops=st.sets(st.integers(0, 200), max_size=20),
    laziness=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 1 << 32),
)
def test_any_schedule(plan, kills, stops, laziness, seed) -> None:
    world = StreamWorld(plan)
    world.shuffle(random.Random(seed), kills, stops if len(plan) > 1 else set(), laziness)
    world.verify()


@pytest.mark.parametrize("laziness", [0.0, 1.0], ids=["noticed at once", "noticed last"])
@pytest.mark.parametrize("in_order", [True, False], ids=["in turn", "as ready"])
def test_a_death_at_any_store(in_order: bool, laziness: float) -> None:
    plan = [StreamPlan((3, 1, 2), 2, in_order)]
    for tick in range(150):
        for fuse in range(12):
            world = StreamWorld(plan)
            world.shuffle(random.Random(tick), {tick: fuse}, set(), laziness)
            world.verify()


def test_no_slot_without_quota() -> None:
    words = Words(DIMS.words)
    consumer, lane = ConsumerStreams(words, DIMS, LANES), LaneStream(words, DIMS, 1)
    consumer.reset()
    assert lane.visit() == (Next.ASLEEP, -1, True)
    assert lane.visit() == (Next.ASLEEP, -1, False)
    consumer.allow(1, 7)
    consumer.allow(1, 4)
    assert LaneStream(words, DIMS, 0).visit().what == Next.ASLEEP
    for slot in (7, 4):
        assert lane.visit() == (Next.TICKETS, slot, False)
        lane.ready(slot, 1, 0, 1, failed=False)
    assert lane.visit().what == Next.ASLEEP


def test_a_new_epoch_drops_what_comes_late() -> None:
    words = Words(DIMS.words)
    consumer, lane = ConsumerStreams(words, DIMS, LANES), LaneStream(words, DIMS, 0)
    consumer.reset()
    consumer.allow(0, 3)
    assert lane.visit() == (Next.TICKETS, 3, True)
    consumer.reset()
    words[W.AWAITED] = W.ANY
    assert not lane.ready(3, 1, 0, 1, failed=False)
    assert not lane.end()
    assert not consumer.ended(0)
    assert words[DIMS.slot(3) + W.S_STATUS] == W.IDLE
    assert words[DIMS.lane(0) + W.L_MADE] == 0
    assert words[W.AWAITED] == W.ANY


def test_the_consumer_is_woken_once() -> None:
    words = Words(DIMS.words)
    consumer, lane = ConsumerStreams(words, DIMS, LANES), LaneStream(words, DIMS, 0)
    consumer.reset()
    consumer.allow(0, 0)
    consumer.allow(0, 1)
    words[W.AWAITED] = W.ANY
    assert lane.visit().slot == 0
    assert lane.ready(0, 1, 0, 1, failed=False)
    assert lane.visit().slot == 1
    assert not lane.ready(1, 1, 0, 1, failed=False)
