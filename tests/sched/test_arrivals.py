"""Samples whose payloads arrive in any order are published once each, in groups that keep to the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fetching.arrivals import Arrivals
from headrace.sched.epochs.trainer_commands import Arrangement

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def published(arrivals, groups, order, first=0):
    """Groups as they come when samples arrive in ``order``; (groups, how many were drawn at each)."""
    numbers = []
    for group in groups:
        numbers += arrivals.draw(group, first + len(numbers))
    found = []
    for position in order:
        assert arrivals.arrive(numbers[position], f"payload {numbers[position]}")
        found += drained(arrivals)
    return found


def drained(arrivals):
    """The groups that can be published now, as lists of (index, payload)."""
    found = []
    while (group := arrivals.next()) is not None:
        assert arrivals.next() == group
        arrivals.publish(group)
        found.append(list(zip(group.indices, group.payloads, strict=True)))
    return found


@st.composite
def epochs(draw):
    sizes = draw(SIZES)
    indices = iter(range(100, 200))
    groups = [[next(indices) for _ in range(size)] for size in sizes]
    return groups, draw(st.permutations(range(sum(sizes))))


@given(epochs(), st.sampled_from(Arrangement), st.integers(0, 3), st.integers(0, 7))
def test_every_sample_is_published_once_with_its_own_payload(epoch, arrangement, displacement, first):
    groups, order = epoch
    arrivals = Arrivals(arrangement, displacement=displacement)
    found = published(arrivals, groups, order, first)
    samples = [sample for group in found for sample in group]
    indices = [index for group in groups for index in group]
    assert sorted(index for index, _ in samples) == indices
    assert all(payload == f"payload {first + indices.index(index)}" for index, payload in samples)
    assert arrivals.waiting() == []
    assert arrivals.missing == 0
    assert arrivals.is_empty


@given(epochs())
def test_strict_groups_are_those_drawn_in_the_order_drawn(epoch):
    groups, order = epoch
    found = published(Arrivals(Arrangement.STRICT), groups, order)
    assert [[index for index, _ in group] for group in found] == groups


@given(epochs())
def test_whole_groups_come_as_they_are_complete(epoch):
    groups, order = epoch
    found = [[index for index, _ in group] for group in published(Arrivals(Arrangement.BATCHES), groups, order)]
    owner = [number for number, group in enumerate(groups) for _ in group]
    complete = {number: max(at for at, p in enumerate(order) if owner[p] == number) for number in range(len(groups))}
    assert found == [groups[number] for number in sorted(complete, key=lambda number: complete[number])]


@st.composite
def even_epochs(draw):
    """Groups as a loader that batches by itself draws them: of one size but for the last."""
    size, samples = draw(st.integers(1, 5)), draw(st.integers(1, 30))
    indices = list(range(100, 100 + samples))
    groups = [indices[at : at + size] for at in range(0, samples, size)]
    return groups, draw(st.permutations(range(samples)))


@given(even_epochs(), st.integers(1, 3))
def test_free_groups_have_the_sizes_drawn_and_keep_the_bound(epoch, displacement):
    groups, order = epoch
    found = published(Arrivals(Arrangement.FREE, displacement=displacement), groups, order)
    assert [len(group) for group in found] == [len(group) for group in groups]
    drawn = {index: number for number, group in enumerate(groups) for index in group}
    for number, group in enumerate(found):
        assert all(number - drawn[index] <= displacement for index, _ in group)


def test_free_order_does_not_wait_for_a_straggler():
    arrivals = Arrivals(Arrangement.FREE)
    first, second = arrivals.draw("ab", 0), arrivals.draw("cd", 2)
    for number in (first[1], second[0]):
        arrivals.arrive(number, None)
    assert drained(arrivals) == [[("b", None), ("c", None)]]
    assert arrivals.waiting() == [["a"], ["d"]]


@pytest.mark.parametrize("arrangement", [Arrangement.STRICT, Arrangement.BATCHES])
def test_groups_of_no_samples_are_published_too(arrangement):
    arrivals = Arrivals(arrangement)
    found = published(arrivals, [[1], [], [2, 3], [], []], [1, 2, 0])
    assert sorted([[index for index, _ in group] for group in found]) == [[], [], [], [1], [2, 3]]
    assert arrivals.is_empty


@pytest.mark.parametrize("arrangement", Arrangement)
def test_what_nobody_waits_for_is_refused(arrangement):
    arrivals = Arrivals(arrangement)
    (number,) = arrivals.draw("a", 0)
    assert arrivals.arrive(number, "here")
    assert not arrivals.arrive(number, "again")
    assert drained(arrivals) == [[("a", "here")]]
    assert not arrivals.arrive(number, "after it was published")
    assert not arrivals.arrive(99, "never asked for")


def test_after_giving_up_nothing_arrives():
    arrivals = Arrivals(Arrangement.STRICT)
    numbers = arrivals.draw("abc", 7)
    arrivals.arrive(numbers[1], "payload of b")
    arrivals.give_up()
    assert arrivals.is_empty
    assert arrivals.missing == 0
    assert not arrivals.arrive(numbers[0], "too late")


def test_what_need_not_be_asked_for_is_there_at_once_and_only_once():
    arrivals = Arrivals(Arrangement.FREE)
    numbers = arrivals.draw([10, 11, 12, 13], 5)
    assert arrivals.arrive(6, "brought")
    arrivals.arrive_at_once(numbers[:3], None)
    assert arrivals.missing == 1
    assert arrivals.arrive(8, "last")
    assert drained(arrivals) == [[(11, "brought"), (10, None), (12, None), (13, "last")]]


def test_what_is_published_does_not_arrive_again():
    arrivals = Arrivals(Arrangement.FREE)
    first = arrivals.draw([10, 11], 0)
    arrivals.draw([12, 13], 2)
    arrivals.arrive_at_once([1, 2], None)
    assert drained(arrivals) == [[(11, None), (12, None)]]
    arrivals.arrive_at_once(first, None)
    assert arrivals.missing == 1
    assert arrivals.arrive(3, None)
    assert drained(arrivals) == [[(10, None), (13, None)]]
