"""What a state says of an epoch whose samples were exchanged."""

import numpy as np
import pytest

from headrace.cache.serving import Answer
from headrace.caching.exchange import ExchangedGroups, SampleIds
from headrace.caching.membership import Hits
from headrace.engine.ordering.saved import members_of
from headrace.engine.trainer.counters import LoaderCounters
from headrace.sched.groups import Groups
from headrace.testing.sources import SourceContract

BATCH = 8


class Drawn:
    """An order that takes no memory."""

    def __init__(self, members):
        self._members, self._count = members, 0

    def draw(self):
        found = self._members[self._count * BATCH : (self._count + 1) * BATCH]
        if not len(found):
            raise StopIteration
        self._count += 1
        return list(map(int, found))

    def state(self):
        return {"drawn": self._count}


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
    numbering = SampleIds(members, None, length, length)
    return ExchangedGroups(order, Others(), numbering, Hits(LoaderCounters()), np.array(done, np.int64))


@pytest.mark.parametrize("length", [64, 101])
@pytest.mark.parametrize("part", [False, True])
def test_a_state_has_what_was_served_and_is_not_held(length, part):
    members = np.arange(1, length, 2) if part else range(length)
    groups, served = exchanged(length, members, done=[int(members[3])]), []
    served += [list(groups.next().indices) for _ in range(3)]
    held = [served[1][2:5], served[2]]
    expected = {int(members[3]), *(each for group in served for each in group)} - {
        each for group in held for each in group
    }
    state = groups.state(held)
    assert set(members_of(state["exchanged"], length).tolist()) == expected
    groups._remaining = None  # it can be computed from what is noted
    assert groups.state(held)["exchanged"] == state["exchanged"]


def test_a_state_does_not_look_at_each_sample_that_was_served():
    """To mark 50 million of them, which are in no order, took half a second."""
    groups = exchanged(1000, range(1000))
    first = list(groups.next().indices)
    groups._served = None
    assert sorted(members_of(groups.state([])["exchanged"], 1000)) == sorted(first)


class TestExchanged(SourceContract):
    """Others come than those drawn, and each once."""

    @pytest.fixture
    def source(self):
        return exchanged(64, range(64))

    @pytest.fixture
    def indices(self):
        return list(range(64))

    def undrawn(self, state):
        held = {index for group in state["pending"] for index in group}
        return sorted(set(range(64)) - set(members_of(state["exchanged"], 64).tolist()) - held)
