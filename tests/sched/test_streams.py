"""Every stream's batches come out once and in its own order, whatever dies."""

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.sched import ledger_layout as W
from headrace.sched.epochs.streammachine import StreamMachine, StreamRules
from headrace.sched.epochs.streams import StreamBatch, TrainerStreams
from headrace.sched.lanes.lanemachine import RING, SLEEP
from headrace.sched.lanes.streamlane import MakeNext, StreamLaneMachine
from headrace.sched.resume import Resume
from tests.sched.memory import Words
from tests.sched.stream_lanes import DIMS, LANES, StreamPlan
from tests.sched.stream_model import StreamWorld
from tests.selection import examples, scaled

BATCH = StreamBatch(items=1, offset=0, size=1, failed=False)
QUICKLY = settings(
    max_examples=examples(100),
    phases=(Phase.generate, Phase.shrink),  # explaining takes minutes
    suppress_health_check=list(HealthCheck),
)


@st.composite
def plans(draw: st.DrawFn, *, first: bool = True) -> StreamPlan:
    lengths = draw(st.tuples(*[st.integers(0, 6)] * LANES))
    began = tuple(draw(st.integers(0, length)) for length in lengths) if first and draw(st.booleans()) else (0,) * LANES
    kinds = st.sampled_from(["raises", "skipped", "refused"])
    return StreamPlan(
        lengths,
        ahead=draw(st.integers(1, 4)),
        in_order=draw(st.booleans()),
        turn=draw(st.integers(0, LANES - 1)),
        began=began,
        behaviour=draw(st.dictionaries(st.tuples(st.integers(0, LANES - 1), st.integers(0, 5)), kinds, max_size=3)),
        short=draw(st.frozensets(st.integers(0, LANES - 1))),
        noted=draw(st.booleans()),
        tight=draw(st.booleans()),
    )


@QUICKLY
@given(
    first=plans(),
    more=st.lists(plans(first=False), max_size=2),
    kills=st.dictionaries(st.integers(0, 150), st.integers(0, 12), max_size=6),
    stops=st.sets(st.integers(0, 200), max_size=20),
    laziness=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 1 << 32),
)
def test_any_schedule(native, first, more, kills, stops, laziness, seed) -> None:
    world = StreamWorld([first, *more], native=native)
    stops = stops if more else set()
    world.shuffle(random.Random(seed), kills=kills, stops=stops, laziness=laziness)


@pytest.mark.scaled
@pytest.mark.parametrize("laziness", [0.0, 1.0], ids=["noticed at once", "noticed last"])
@pytest.mark.parametrize("in_order", [True, False], ids=["in turn", "as ready"])
def test_a_death_at_any_store(in_order: bool, laziness: float) -> None:
    plan = [StreamPlan((3, 1, 2), 2, in_order)]
    for tick in range(0, 150, scaled(7, 1)):
        for fuse in range(9):
            StreamWorld(plan).shuffle(random.Random(tick), kills={tick: fuse}, laziness=laziness)


def test_no_slot_without_quota() -> None:
    words = Words(DIMS.words)
    trainer, lane = TrainerStreams(words, DIMS, LANES), StreamLaneMachine(words, DIMS, 1)
    trainer.reset()
    lane.began()
    assert (lane.next(), lane.begins) == (SLEEP, True)
    lane.began()
    assert (lane.next(), lane.begins) == (SLEEP, False)
    trainer.allow(1, 7)
    trainer.allow(1, 4)
    assert StreamLaneMachine(words, DIMS, 0).next() == SLEEP
    for slot in (7, 4):
        assert (lane.next(), lane.begins) == (MakeNext(slot), False)
        lane.made(BATCH)
    assert lane.next() == SLEEP


def test_a_new_epoch_drops_what_comes_late() -> None:
    words = Words(DIMS.words)
    trainer, lane = TrainerStreams(words, DIMS, LANES), StreamLaneMachine(words, DIMS, 0)
    trainer.reset()
    trainer.allow(0, 3)
    assert (lane.next(), lane.begins) == (MakeNext(3), True)
    trainer.reset()
    words[W.AWAITED] = W.ANY
    lane.made(BATCH)
    lane.ended(-1)
    assert not lane.rings
    assert not trainer.ended(0)
    assert words[DIMS.slot(3) + W.S_STATUS] == W.IDLE
    assert words[DIMS.lane(0) + W.L_MADE] == 0
    assert words[W.AWAITED] == W.ANY


def test_the_trainer_is_woken_once() -> None:
    words = Words(DIMS.words)
    trainer, lane = TrainerStreams(words, DIMS, LANES), StreamLaneMachine(words, DIMS, 0)
    trainer.reset()
    trainer.allow(0, 0)
    trainer.allow(0, 1)
    words[W.AWAITED] = W.ANY
    assert lane.next() == MakeNext(0)
    lane.made(BATCH)
    assert (lane.next(), lane.next()) == (RING, MakeNext(1))
    lane.made(BATCH)
    assert lane.next() == SLEEP


def test_a_lane_may_die_once_over_each_batch() -> None:
    words = Words(DIMS.words)
    streams = TrainerStreams(words, DIMS, LANES)
    machine = StreamMachine(words.trainer(DIMS), streams, [Resume()] * LANES, (), StreamRules(True, 1), 0)
    assert [machine.blame(0, batch) for batch in (4, 5, 5, 5, 6)] == [False, False, True, True, False]
    assert not machine.blame(1, 6)


def test_a_stream_is_taken_up_where_nothing_of_it_can_be_lost() -> None:
    words = Words(DIMS.words)
    streams = TrainerStreams(words, DIMS, LANES)
    begun = [Resume(state="s", batches=2), Resume(batches=2), Resume(), Resume(batches=2, ended=True)]

    def taken_up(resumed: Resume, *, others: bool = False, stateful: bool = False, repeats: bool = False) -> bool:
        rules = StreamRules(True, 1, stateful, repeats)
        every = [resumed, begun[0] if others else Resume(), Resume()]
        machine = StreamMachine(words.trainer(DIMS), streams, every, (), rules, 0)
        machine.begin()
        StreamLaneMachine(words, DIMS, 0).next()  # it knows of the epoch
        return machine.successor(0, ()) is not None

    assert [taken_up(resumed) for resumed in begun] == [True, False, False, True]
    assert [taken_up(resumed, stateful=True) for resumed in begun] == [True, False, True, True]
    assert [taken_up(resumed, others=True) for resumed in begun] == [True, False, True, True]
    assert all(taken_up(resumed, repeats=True) for resumed in begun)


def test_a_lane_that_had_not_begun_leaves_nothing() -> None:
    words = Words(DIMS.words)
    streams = TrainerStreams(words, DIMS, LANES)
    machine = StreamMachine(words.trainer(DIMS), streams, [Resume()] * LANES, (), StreamRules(True, 1), 0)
    machine.begin()
    assert machine.successor(0, ()) is not None
    StreamLaneMachine(words, DIMS, 0).next()
    assert machine.successor(0, ()) is None
