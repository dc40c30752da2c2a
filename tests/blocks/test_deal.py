"""An epoch divided among ranks, again and again: what nobody delivered is delivered once, by exactly one."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from headrace.blocks.block_layout import BlockLayout
from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.deal import Rest, deal, union
from headrace.blocks.draws import Draws
from headrace.blocks.remainder import Remainder
from headrace.core.errors import StateMismatch
from tests.blocks.test_plan import MIB, layouts
from tests.selection import examples


def drawn_by(plan, share, steps=None, rank=0):
    """What a rank draws of its share in so many steps, and what is left then."""
    draws, seen = Draws(plan, share, 2 * MIB, rank=rank), []
    while steps is None or steps > 0:
        step = draws.step()
        if step is None:
            break
        seen += step.drawn.tolist()
        steps = None if steps is None else steps - 1
    return seen, draws.remainder()


@given(layouts(), st.integers(1, 9), st.integers(0, 5))
def test_ranks_share_an_epoch_evenly(layout, world, seed):
    plan = BlockPlan(layout, seed, 0)
    shares = deal(plan, Remainder.everything(plan), world)
    drawn = [drawn_by(plan, share)[0] for share in shares]
    assert sorted(sample for each in drawn for sample in each) == list(range(plan.total))
    assert [len(each) for each in drawn] == [plan.total // world + (rank < plan.total % world) for rank in range(world)]
    assert [share.count(plan) for share in shares] == [len(each) for each in drawn]


@given(layouts(), st.integers(1, 9), st.sampled_from([Rest.DROP, Rest.PAD]))
def test_ranks_have_the_same_number_where_that_is_asked_for(layout, world, rest):
    plan = BlockPlan(layout, 0, 0)
    drawn = [drawn_by(plan, share)[0] for share in deal(plan, Remainder.everything(plan), world, rest)]
    (count,) = {len(each) for each in drawn}
    every = [sample for each in drawn for sample in each]
    if rest is Rest.DROP:
        assert count == plan.total // world
        assert len(set(every)) == len(every)
    else:
        assert count == -(-plan.total // world)
        assert set(every) == set(range(plan.total))
        for share, each in zip(deal(plan, Remainder.everything(plan), world, rest), drawn, strict=True):
            assert len(set(each)) == len(each)  # what is delivered twice is delivered by two
            assert len(share.again) <= 1


@settings(max_examples=examples(100))
@given(layouts(), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.sampled_from(Rest), st.data())
def test_what_nobody_delivered_is_delivered_once_whatever_the_ranks_become(layout, worlds, rest, data):
    """Ranks are stopped anywhere, lose what they drew and did not deliver, and others take over, several times."""
    plan = BlockPlan(layout, 3, 0)
    left, delivered = [Remainder.everything(plan)], []
    for world in worlds:
        shares = deal(plan, union(plan, left), world, rest)
        left = []
        for rank, share in enumerate(shares):
            again = set(share.again.tolist())
            seen, rest_of_it = drawn_by(plan, share, data.draw(st.integers(0, 12)), rank)
            kept = data.draw(st.integers(0, len(seen)))
            delivered += [sample for sample in seen[:kept] if sample not in again]
            lost = [sample for sample in seen[kept:] if sample not in again]
            state = rest_of_it.with_samples(np.array(lost, np.int64)).encoded(plan)
            left.append(Remainder.decoded(plan, state))
        data.draw(st.randoms(use_true_random=False)).shuffle(left)
    assert len(set(delivered)) == len(delivered)
    last = deal(plan, union(plan, left), 2)
    delivered += [sample for rank, share in enumerate(last) for sample in drawn_by(plan, share, rank=rank)[0]]
    assert sorted(delivered) == list(range(plan.total))


def test_begun_reads_go_to_whoever_has_the_fewest_samples():
    plan = BlockPlan(BlockLayout([1000], [10**8]), 0, 0)
    reads = np.arange(5)
    begun = [plan.samples(reads[number : number + 1])[: 10 - number] for number in range(5)]
    left = Remainder(Remainder.everything(plan).tail.after(5), np.concatenate(begun))
    shares = deal(plan, left, 2)
    assert sorted(plan.reads(shares[0].loose).tolist()) != sorted(plan.reads(shares[1].loose).tolist())
    whole = [set(plan.reads(share.loose).tolist()) & set(range(5)) for share in shares]
    assert not whole[0] & whole[1]
    assert whole[0] | whole[1] == set(range(5))


def test_states_of_another_moment_are_refused():
    plan = BlockPlan(BlockLayout([1000], [10**8]), 0, 0)
    first, second, third = deal(plan, Remainder.everything(plan), 3)
    for some in ([first, second], [first, first, third], [first, second, third, third]):
        with pytest.raises(StateMismatch, match="not the states of all ranks of one moment"):
            union(plan, some)
    later = deal(plan, union(plan, [first, second, third]), 3)
    seen, left = drawn_by(plan, later[0], 40)
    assert seen
    with pytest.raises(StateMismatch, match="have the same samples still to deliver"):
        union(plan, [left, later[1].with_samples(left.loose[:1]), later[2]])


def test_a_division_among_nobody_is_refused():
    plan = BlockPlan(BlockLayout([10], [100]), 0, 0)
    with pytest.raises(ValueError, match="a positive number of ranks, not 0"):
        deal(plan, Remainder.everything(plan), 0)
