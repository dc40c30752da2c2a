"""Which rows of a group are brought, as a cache has answered it."""

import pytest

from headrace.cache.backends.entry_word import DECODED, LOOK
from headrace.caching.plans import CachePlace, Plan
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.arriving import ArrivingGroups
from headrace.fetching.wire import NUMBER_LABEL, Arrived
from headrace.remote.supply import Crowd, RemoteGroups
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.testing.sources import ScriptedSource, SourceContract


def named(index, form):
    return f"{index} {form}"


class OneGroup(ScriptedSource):
    """A group that a cache has answered."""

    def __init__(self, indices, plans):
        super().__init__([indices])
        self._plans = plans

    def next(self):
        group = super().next()
        if group is not None:
            group.made_of = [CachePlace(plan) for plan in self._plans]
        return group


class Notes:
    """A fetcher that notes what it is asked for, and brings nothing."""

    ask_for = 8

    def __init__(self):
        self.asked = []

    def pump(self):
        pass

    def number(self, count):
        return 0

    def ask(self, keys, arrived):
        self.asked += keys.values()


def test_what_a_worker_is_to_look_for_is_brought_as_what_nobody_has():
    plans = [Plan(1 << 40 | DECODED, 0), Plan(0, DECODED), Plan(LOOK, DECODED)]
    fetcher = Notes()
    groups = ArrivingGroups(OneGroup([5, 6, 7], plans), fetcher, str, Arrangement.STRICT, 0)
    groups.ask()
    assert fetcher.asked == ["6", "7"], "an entry may be gone, but is there as a rule; what is looked for is not"


class Bringing(Notes):
    """A fetcher that brings, last first, what it was asked for, when it is told to."""

    batch = 2

    def __init__(self):
        super().__init__()
        self.numbered, self.owed, self.held = 0, {}, {}
        there = {"lanes": 4, "unit": 1, "made": 0.0, "size": 1, "trip": 0.0, "nodes": {}, "carried": False}
        self.facts = {"remote": there | {"refused": "", "news": [], "gone": ""}}

    def number(self, count):
        self.numbered += count
        return self.numbered - count

    def ask(self, keys, arrived):
        self.owed.update(dict.fromkeys(keys, arrived))

    def bring(self):
        while self.owed:
            number, arrived = self.owed.popitem()
            self.held[number] = place = Arrived(number, False, NUMBER_LABEL, 64 * number, 8, number, 0, 1, 0)
            arrived(place)

    def taken(self, places):
        assert all(self.held[place.number] is place for place in places)

    def free(self, places):
        for place in places:
            del self.held[place.number]

    def forget(self, arrived):
        self.owed.clear()

    def drop(self, numbers):
        for number in numbers:
            self.owed.pop(number, None)


ITEMS = [[1, 2], [3, 4], [5, 6], [7, 8], [9]]


class TestArriving(SourceContract):
    fetcher = Bringing()

    @pytest.fixture(params=list(Arrangement))
    def source(self, request):
        self.fetcher = Bringing()
        return ArrivingGroups(ScriptedSource(ITEMS), self.fetcher, str, request.param, 0)

    @pytest.fixture
    def indices(self):
        return list(range(1, 10))

    def arrive(self):
        self.fetcher.bring()


class TestRemote(TestArriving):
    """Some groups are made here, some elsewhere."""

    @pytest.fixture(params=list(Arrangement))
    def source(self, request):
        self.fetcher = Bringing()
        crowd = Crowd(1 << 20, workers=1)
        return RemoteGroups(ScriptedSource(ITEMS), self.fetcher, named, request.param, 0, crowd, LoaderCounters())

    def test_some_are_made_elsewhere(self, source, indices):
        groups = self._rest(source)
        elsewhere = [place for group in groups for place in group.made_of if place is not None]
        assert 0 < len(elsewhere) < len(indices)
