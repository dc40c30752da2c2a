"""Each sample arrives once or is given back once, whatever lanes do."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headrace.remote.rules.owing import Owing
from tests.selection import examples


class Accounts(RuleBasedStateMachine):
    """Lanes join, answer, repeat themselves, fall silent and end; the user drops samples."""

    lanes = Bundle("lanes")

    def __init__(self):
        super().__init__()
        self.owing = Owing()
        self.now = 0.0
        self.samples = self.numbers = 0
        self.outcomes: dict[int, str] = {}
        self.wanted: set[int] = set()
        self.asked: dict[int, list] = {}

    @rule(count=st.integers(1, 5))
    def want(self, count):
        new = range(self.samples, self.samples + count)
        self.samples += count
        self.wanted.update(new)
        self.owing.want(new)

    @rule(target=lanes)
    def join(self):
        self.numbers += 1
        self.owing.join(self.numbers, self.now)
        self.asked[self.numbers] = []
        return self.numbers

    @rule(lane=lanes)
    def ask(self, lane):
        if lane in self.asked:
            asked = self.owing.next(lane, self.now)
            if asked is not None:
                assert asked.samples
                assert not self.wanted.isdisjoint(asked.samples)
                self.asked[lane].append(asked)

    @rule(lane=lanes, again=st.booleans())
    def answer(self, lane, again):
        if not self.asked.get(lane):
            return
        asked = self.asked[lane].pop(0)
        owed = self.owing.owed(lane, asked.number)
        assert owed in (None, asked.samples)
        samples = self.owing.arrived(lane, asked.number)
        assert samples == owed
        self.over(samples or (), "came")
        if again:
            assert self.owing.arrived(lane, asked.number) is None

    @rule(lane=consumes(lanes))
    def end(self, lane):
        if self.asked.pop(lane, None) is not None:
            self.over(self.owing.leave(lane), "given back")

    @rule(lane=lanes, patience=st.floats(0.1, 3))
    def fall_silent(self, lane, patience):
        if self.asked.get(lane):
            self.owing.heard(lane)
            for _ in range(5):
                self.now += 1.0
                silent = self.owing.silent(self.now, patience, [lane])
            assert silent == [lane]
            self.asked.pop(lane)
            self.over(self.owing.leave(lane), "given back")

    @rule(data=st.data())
    def drop(self, data):
        if self.wanted:
            dropped = data.draw(st.sets(st.sampled_from(sorted(self.wanted))))
            self.wanted -= dropped
            self.owing.forget(dropped)

    def over(self, samples, how):
        for sample in samples:
            if sample in self.wanted:
                assert sample not in self.outcomes
                self.outcomes[sample] = how
                self.wanted.remove(sample)

    @invariant()
    def all_are_somewhere(self):
        assert self.owing.waiting + self.owing.asked >= len(self.wanted)

    def teardown(self):
        """One good lane makes all that is left."""
        if not self.wanted:
            return
        for lane in list(self.asked):
            self.over(self.owing.leave(lane), "given back")
        self.owing.join(0, self.now)
        while (asked := self.owing.next(0, self.now)) is not None:
            self.over(self.owing.arrived(0, asked.number) or (), "came")
        assert not self.wanted
        assert self.owing.is_idle


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class TestLanesThatEnd:
    def test_the_sample_that_ends_its_lane_twice_is_given_back_alone(self):
        owing = Owing()
        owing.want([1, 2, 3])
        ended, given_back = 0, []
        made = set()
        for lane in range(20):
            owing.join(lane, 0.0)
            while (asked := owing.next(lane, 0.0, depth=1)) is not None:
                if 2 in asked.samples:
                    break
                made.update(owing.arrived(lane, asked.number))
            else:
                break
            ended += 1
            given_back += owing.leave(lane)
        assert given_back == [2]
        assert made == {1, 3}
        assert ended == 3  # the group's, then two of its own

    def test_what_was_not_begun_is_not_held_against_it(self):
        owing = Owing()
        owing.want([1])
        owing.want([2])
        for lane, given_back in enumerate([[], [1]]):  # the first sample ends both lanes
            owing.join(lane, 0.0)
            assert [owing.next(lane, 0.0).samples for _ in range(2)] == [(1,), (2,)]
            assert owing.leave(lane) == given_back
        owing.join(2, 0.0)
        assert owing.next(2, 0.0).samples == (2,)
        assert owing.leave(2) == []

    def test_lanes_that_are_not_listened_to_are_not_silent(self):
        owing = Owing()
        owing.want([1])
        owing.join(7, 0.0)
        owing.next(7, 0.0)
        assert owing.silent(100.0, 0.5, []) == []
        assert owing.silent(200.0, 0.5, [7]) == [7]

    def test_who_looks_late_blames_nobody(self):
        owing = Owing()
        owing.want([1])
        owing.join(7, 0.0)
        owing.next(7, 0.0)
        assert owing.silent(1000.0, 5.0, [7]) == []

    def test_all_that_waits_is_given_back_at_once(self):
        owing = Owing()
        owing.want([1, 2])
        owing.want([3])
        assert owing.give_back() == [1, 2, 3]
        assert owing.is_idle
