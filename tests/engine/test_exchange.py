"""What a state says of an epoch whose samples were exchanged."""

import numpy as np
import pytest

from headrace.cache.serving import Answer
from headrace.engine.consumer.counters import LoaderCounters
from headrace.engine.consumer.ordering.saved import members_of
from headrace.engine.consumer.supply.exchange import ExchangedGroups, Numbering
from headrace.engine.consumer.supply.membership import Hits
from headrace.sched.groups import Groups

BATCH = 8


class Drawn:
    """An order that takes no memory."""

    first = 1

    def __init__(self, members):
        self._members = members

    def item(self, number):
        found = self._members[(number - 1) * BATCH : number * BATCH]
        if not len(found):
            raise StopIteration
        return list(map(int, found))

    def state(self, number):
        return {"drawn": number}


class Others:
    """A cache that has other samples than those drawn."""

    def begin(self, outside):
        pass

    def request(self, asked, remaining):
        others = remaining.some(len(asked), np.empty(0, np.int64))
        return Answer(others, np.zeros(len(others), np.uint64), np.zeros(len(others), np.int64))

    def saw(self, samples):
        pass


def exchanged(length, members, done=()):
    order = Groups(Drawn(members), [], None, batched=True)
    numbering = Numbering(members, None, length, length)
    return ExchangedGroups(order, Others(), numbering, Hits(LoaderCounters()), np.array(done, np.int64))


@pytest.mark.parametrize("length", [64, 101])
@pytest.mark.parametrize("part", [False, True])
def test_a_state_has_what_was_served_and_is_not_held(length, part):
    members = np.arange(1, length, 2) if part else range(length)
    groups, served = exchanged(length, members, done=[int(members[3])]), []
    for _ in range(3):
        served.append(list(groups.head()))
        groups.taken()
    held = [served[1][2:5], served[2]]
    expected = {int(members[3]), *(each for group in served for each in group)} - {
        each for group in held for each in group
    }
    state = groups.progress(held)
    assert set(members_of(state["exchanged"], length).tolist()) == expected
    assert set(state["pending"].done().tolist()) == expected
    groups._remaining = None  # as after an interrupt: it is computed from what is noted
    assert groups.progress(held)["exchanged"] == state["exchanged"]
    groups.head()
    assert set(state["pending"].done().tolist()) == expected, "what was said of a moment changed after it"


def test_a_state_does_not_look_at_each_sample_that_was_served():
    """To mark 50 million of them, which are in no order, took half a second."""
    groups = exchanged(1000, range(1000))
    first = list(groups.head())
    groups.taken()
    groups._served = None
    assert sorted(members_of(groups.progress([])["exchanged"], 1000)) == sorted(first)
