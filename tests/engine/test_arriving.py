"""Which rows of a group are brought, as a cache has answered it."""

from headrace.cache.backends.entry_word import DECODED, LOOK
from headrace.caching.plans import Plan
from headrace.fetching.arriving import ArrivingGroups
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.testing.sources import ScriptedSource


class OneGroup(ScriptedSource):
    """A group that a cache has answered."""

    def __init__(self, indices, plans):
        super().__init__([indices])
        self._plans = plans

    def next(self):
        group = super().next()
        if group is not None:
            group.made_of = [(plan, None) for plan in self._plans]
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
    groups = ArrivingGroups(OneGroup([5, 6, 7], plans), fetcher, lambda index, _: str(index), Arrangement.STRICT, 0)
    groups.ask()
    assert fetcher.asked == ["6", "7"], "an entry may be gone, but is there as a rule; what is looked for is not"
