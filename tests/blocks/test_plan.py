"""An epoch's reads and draws: each sample once, in bounded memory, in an order that follows from the seed."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from headrace.blocks.block_layout import BLOCK, BlockLayout, Piece, block_bytes
from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.draws import Draws
from headrace.blocks.permutation import Permutation, key
from headrace.blocks.remainder import Remainder
from headrace.core.errors import StateMismatch
from tests.selection import examples

MIB = 1 << 20


@st.composite
def layouts(draw, most_shards=12):
    """Shards of few and of many samples, tiny and large ones, some empty."""
    shards = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 300_000)), max_size=most_shards))
    return BlockLayout(
        [count for count, _ in shards],
        [count * mean for count, mean in shards],
        block=draw(st.sampled_from([0, 1 << 12, 1 << 16, BLOCK])),
        whole=draw(st.booleans()),
    )


def drawn_all(draws):
    steps = []
    while (step := draws.step()) is not None:
        steps.append(step)
    return steps


def order(plan, memory=2 * MIB, **options):
    steps = drawn_all(Draws(plan, Remainder.everything(plan), memory, **options))
    return np.concatenate([np.zeros(0, np.int64), *(step.drawn for step in steps)]).tolist()


@given(st.integers(0, 3000), st.integers(0, 1 << 70))
def test_a_permutation_has_each_number_once_and_finds_its_place(size, seed):
    permutation = Permutation(size, key(seed))
    places = np.arange(size)
    numbers = permutation(places)
    assert sorted(numbers.tolist()) == list(range(size))
    assert permutation.places(numbers).tolist() == places.tolist()


def test_random_numbers_are_the_same_everywhere():
    assert Permutation(10, key(1, 2))(np.arange(10)).tolist() == Permutation(10, key(1, 2))(np.arange(10)).tolist()
    assert key(0, 1) != key(1, 0) != key(1) != key(-1)
    # Written down: a state of another machine goes on in the same order here.
    assert (key(1, 2), Permutation(10, 7)(np.arange(10)).tolist()) == (
        12955126697039071611,
        [0, 3, 6, 8, 4, 2, 5, 9, 7, 1],
    )


def test_a_permutation_is_no_pattern():
    """Places and numbers are as far apart as chance has them, and neighbours do not stay together."""
    found = Permutation(100_000, key(3))(np.arange(100_000))
    assert abs(np.corrcoef(np.arange(100_000), found)[0, 1]) < 0.02
    apart = np.abs(np.diff(found))
    assert 0.32 < apart.mean() / 100_000 < 0.35  # a third, of two numbers drawn at random


@given(layouts(), st.integers(0, 5), st.integers(0, 3))
def test_each_sample_is_in_one_read(layout, seed, epoch):
    plan = BlockPlan(layout, seed, epoch)
    reads = np.arange(plan.count)
    samples = plan.samples(reads)
    assert sorted(samples.tolist()) == list(range(layout.total))
    assert plan.reads(samples).tolist() == np.repeat(reads, plan.sizes(reads)).tolist()
    assert (plan.sizes(reads) > 0).all()


@given(layouts(), st.integers(0, 5), st.data())
def test_reads_are_counted_without_looking_at_each(layout, seed, data):
    plan = BlockPlan(layout, seed, 0)
    begin, step = data.draw(st.integers(0, plan.count)), data.draw(st.integers(1, 7))
    counted = plan.counted(begin, step)
    for k in range(step):
        assert counted[k] == plan.sizes(np.arange(begin + k, plan.count, step)).sum()


def test_a_piece_is_neighbours_of_one_shard():
    layout = BlockLayout([3, 0, 4], [300, 0, 400])
    assert layout.pieces(1, 6) == [Piece(0, 1, 3), Piece(2, 0, 3)]
    assert layout.pieces(3, 3) == []


def test_borders_move_with_the_epoch():
    layout = BlockLayout([1000], [1000 * 10_000])
    borders = [set(BlockPlan(layout, 0, epoch).bounds(np.arange(9))[0].tolist()) - {0} for epoch in range(4)]
    assert len(set.intersection(*borders)) == 0
    assert all(np.ptp(np.sort(list(each))[:-1] % 105) == 0 for each in borders)


@pytest.mark.parametrize(
    ("mean", "memory", "samples"),
    [
        (100_000, 1 << 30, 10),
        (100_000, 256 * MIB, 3),
        (1000, 1 << 30, 1049),
        (255_000, 1 << 30, 4),
        (256_000, 1 << 30, 1),
    ],
)
def test_blocks_have_about_a_megabyte_and_large_samples_come_singly(mean, memory, samples):
    plan = BlockPlan(BlockLayout([40_000], [40_000 * mean], block=block_bytes(memory)), 0, 0)
    assert np.bincount(plan.sizes(np.arange(plan.count))).argmax() == samples


def test_a_global_shuffle_reads_every_sample_by_itself():
    plan = BlockPlan(BlockLayout([500, 500], [500_000, 500_000], block=0), 0, 0)
    assert plan.count == plan.total == 1000
    found = order(plan)
    assert sorted(found) == list(range(1000))
    assert np.ptp(found[:20]) > 500


def test_shards_of_other_samples_have_blocks_of_their_own():
    layout = BlockLayout([1000, 1000, 10], [10**6, 10**6 + 5000, 10**7])
    plan = BlockPlan(layout, 0, 0)
    begin, end = plan.bounds(np.arange(plan.count))
    assert sorted((end - begin)[begin >= 2000].tolist()) == [1] * 10
    assert layout.starts.tolist() == [0, 2000, 2010]


def test_row_groups_are_read_whole():
    plan = BlockPlan(BlockLayout([7, 100, 3], [7 * MIB, 100 * MIB, 3], whole=True), 1, 1)
    assert sorted(plan.sizes(np.arange(plan.count)).tolist()) == [3, 7, 100]


@given(layouts(), st.integers(0, 5), st.integers(1, 5 * MIB))
def test_each_sample_is_drawn_once_from_what_is_held_in_bounded_memory(layout, seed, memory):
    plan = BlockPlan(layout, seed, 0)
    draws = Draws(plan, Remainder.everything(plan), memory)
    held, seen = set(), []
    left = {}
    while (step := draws.step()) is not None:
        for read in step.held.tolist():
            assert read not in left
            left[read] = set(plan.samples(np.array([read])).tolist())
            held.add(read)
        for sample, read in zip(step.drawn.tolist(), plan.reads(step.drawn).tolist(), strict=True):
            left[read].remove(sample)  # it is held, and was not drawn before
        for read in step.released.tolist():
            assert not left[read]
            held.remove(read)
        assert all(left[read] for read in held)
        assert draws.held_bytes <= memory or len(held) <= 1
        seen += step.drawn.tolist()
    assert not held
    assert sorted(seen) == list(range(plan.total))
    assert draws.drawn == plan.total
    assert draws.held_bytes == 0


def test_memory_is_used():
    plan = BlockPlan(BlockLayout([1000], [10**8]), 0, 0)
    draws = Draws(plan, Remainder.everything(plan), 30 * MIB)
    draws.skip(300)
    draws.step()
    assert 0.85 * 30 * MIB < draws.held_bytes <= 30 * MIB


@given(layouts(), st.integers(0, 5))
def test_the_order_follows_from_seed_and_epoch(layout, seed):
    plan = BlockPlan(layout, seed, 1)
    assert order(plan) == order(BlockPlan(layout, seed, 1))
    if plan.total > 20:
        assert order(plan) != order(BlockPlan(layout, seed, 2))
        assert order(plan) != order(BlockPlan(layout, seed + 1, 1))


@settings(max_examples=examples(60))
@given(layouts(), st.integers(0, 5), st.data())
def test_draws_go_on_in_the_same_order_from_what_is_left(layout, seed, data):
    """As long as nobody else has a part of it, an epoch that was interrupted has the order it would have had."""
    plan = BlockPlan(layout, seed, 0)
    whole = order(plan)
    place = data.draw(st.integers(0, plan.total))
    first = Draws(plan, Remainder.everything(plan), 2 * MIB)
    beyond = first.skip(place)
    saved = json.loads(json.dumps([first.base.encoded(plan), first.base_drawn, first.drawn - len(beyond)]))
    again = Draws(plan, Remainder.decoded(plan, saved[0]), 2 * MIB, drawn=saved[1])
    rest = again.skip(saved[2] - saved[1]).tolist()
    rest += [sample for step in drawn_all(again) for sample in step.drawn.tolist()]
    assert rest == whole[place:]


def test_the_pool_is_put_in_order_now_and_then(monkeypatch):
    """The order stays that of the seed, and a state begins where it was last put in order."""
    monkeypatch.setattr("headrace.blocks.draws.REBASED", 100)
    plan = BlockPlan(BlockLayout([1000], [10**8]), 0, 0)
    whole = order(plan)
    assert sorted(whole) == list(range(1000))
    draws = Draws(plan, Remainder.everything(plan), 2 * MIB)
    draws.skip(555)
    assert 400 <= draws.base_drawn <= 560
    again = Draws(plan, draws.base, 2 * MIB, drawn=draws.base_drawn)
    rest = again.skip(555 - draws.base_drawn).tolist()
    assert rest + [sample for step in drawn_all(again) for sample in step.drawn.tolist()] == whole[555:]


@given(layouts(), st.integers(0, 5), st.data())
def test_what_is_left_is_all_that_was_not_drawn(layout, seed, data):
    plan = BlockPlan(layout, seed, 0)
    draws = Draws(plan, Remainder.everything(plan), MIB)
    seen = set()
    for _ in range(data.draw(st.integers(0, 20))):
        step = draws.step()
        seen.update([] if step is None else step.drawn.tolist())
    left = Remainder.decoded(plan, json.loads(json.dumps(draws.remainder().encoded(plan))))
    assert left.count(plan) == plan.total - len(seen)
    rest = [sample for step in drawn_all(Draws(plan, left, MIB)) for sample in step.drawn.tolist()]
    assert len(rest) == len(set(rest))
    assert set(rest) | seen == set(range(plan.total))
    assert not set(rest) & seen


@pytest.mark.parametrize(("size", "most"), [(100_000, 10_000), (10_000, 100_000)])
def test_a_state_of_a_hundred_million_samples_is_small(size, most):
    """And nothing that was made on the way there grows with their number."""
    per = (64 * MIB) // size
    shards = 100_000_000 // per
    plan = BlockPlan(BlockLayout([per] * shards, [per * size] * shards), 0, 0)
    draws = Draws(plan, Remainder.everything(plan), 1 << 30)
    draws.skip(200_000)
    left = draws.remainder()
    assert len(json.dumps(left.encoded(plan))) < most
    assert left.count(plan) == plan.total - draws.drawn


@pytest.mark.parametrize(
    "damage",
    [
        {"tail": [0, 0, 5]},
        {"tail": [0, 1, 10**9]},
        {"tail": None},
        {"reads": "0"},
        {"reads": "0!!!"},
        {"begun": "9abc"},
        {"left": ""},
        {"left": "c$~{;"},
        {"again": [10**9]},
        {"spare": ["x"]},
    ],
)
def test_a_damaged_state_is_refused(damage):
    plan = BlockPlan(BlockLayout([1000], [10**8]), 0, 0)
    draws = Draws(plan, Remainder.everything(plan), 2 * MIB)
    draws.skip(100)
    state = draws.remainder().encoded(plan)
    with pytest.raises(StateMismatch, match="undelivered samples is damaged"):
        Remainder.decoded(plan, state | damage)


def test_numbers_that_fit_nothing_are_refused():
    with pytest.raises(ValueError, match="one number of samples and one of bytes for each shard"):
        BlockLayout([1, 2], [3])
    with pytest.raises(ValueError, match="none negative"):
        BlockLayout([-1], [3])
