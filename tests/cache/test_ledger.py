"""The ledger under any interleaving, death and restart; what it serves, keeps and gives up."""

import functools
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache import division, ledger
from headrace.cache import words as W
from headrace.cache.division import Division
from headrace.cache.ledger import Seat
from headrace.cache.policies import Need, Opportunistic, Soonest, Static
from headrace.cache.replay import Replay
from headrace.cache.simulate import simulate
from headrace.cache.trace import drawn
from headrace.core.errors import CacheError
from tests.cache.memory import Killed, empty

TIMEOUT = 1000
SIZE = 10
BUDGET = (30, 60, 40)
ROOM = sum(BUDGET)
POLICIES = [Need(), Opportunistic(), Opportunistic(refills=False), Static(), Soonest()]


def seat(words, name, policy=None, group=None, seed=None):
    return Seat(
        words,
        words.view,
        policy=policy or Need(),
        name=name,
        group=group or name,
        timeout=TIMEOUT,
        seed=name if seed is None else seed,
    )


def joined(words, name, members=None, **options):
    found = seat(words, name, **options)
    found.join(0)
    found.begin(0, 0, members=members)
    return found


def made(one, serving, now=0, size=SIZE, form=None):
    """What a worker does with what it was served; True if it is cached then."""
    form = serving.keep if form is None else form
    return bool(form) and one.reserve(serving.sample, form, size, now).granted and one.settle(serving.sample)


def epoch(one, samples, batch=4, number=0, now=0):
    """All that is served in an epoch, made and kept."""
    one.begin(number, now)
    order = np.random.default_rng(number).permutation(samples)
    served = []
    for first in range(0, samples, batch):
        for each in one.request(order[first : first + batch], now).servings:
            made(one, each, now)
            served.append(each)
    return served


class Job:
    """A process with one rank: what it delivered survives it, nothing else does."""

    def __init__(self, world, number, members):
        self.world, self.number, self.members = world, number, members
        self.epoch, self.delivered, self.life = 0, [], 0
        self.seat, self.making, self.drawn = None, [], []

    def start(self):
        self.life += 1
        name = 1 + self.number + 100 * self.life
        self.seat = seat(self.world.words, name, self.world.policy, group=self.number + 1)
        self.seat.join(self.world.now)
        self._begin()

    def _begin(self):
        members = np.array(self.members, np.int64)
        self.seat.begin(self.epoch, self.world.now, members=members, done=self.delivered)
        left = [sample for sample in self.members if sample not in set(self.delivered)]
        self.world.random.shuffle(left)
        self.drawn, self.making = left, []

    def ask(self, count):
        if not self.drawn:
            assert sorted(self.delivered) == sorted(self.members), "an epoch ended with samples left out or repeated"
            self.epoch, self.delivered = self.epoch + 1, []
            self._begin()
        count = min(count, len(self.drawn))
        answer = self.seat.request(np.array(self.drawn[:count], np.int64), self.world.now)
        del self.drawn[:count]
        assert len(answer.servings) == count
        for each in answer.servings:
            assert each.sample not in self.delivered
            assert each.sample in self.members
            self.delivered.append(each.sample)
            if each.form == W.NOWHERE and each.keep:
                self.making.append((each, True))
        self.making += [(each, False) for each in answer.refills]

    def do(self, what, count):
        if what == "ask":
            self.ask(count)
        elif what in {"make", "fail"}:
            self.make(SIZE + count, fails=what == "fail")
        elif what == "divide":
            self.seat.agree(None, ROOM, self.world.now)
            number = division.current(self.world.words.view).number + 1
            parts = [(100, 0, 0), (0, 100, 0), (0, 50, 50), (34, 33, 33), (60, 40, 0), (0, 0, 100)][count - 1]
            assert self.seat.divide(Division(number, parts, fixed=False, before=parts))
        elif what == "lost":
            self.seat.lost(count % self.world.samples, 1 + count % 3)
        elif what == "wait":
            self.world.now += TIMEOUT * (count > 3)
        else:
            if what == "leave":
                self.seat.leave()
            self.seat = None

    def make(self, size, *, fails):
        if not self.making:
            return
        each, served = self.making.pop()
        if not self.seat.reserve(each.sample, each.keep, size, self.world.now).granted:
            return
        if fails:
            self.seat.cancel(each.sample)
        else:
            self.seat.settle(each.sample, served=served)


class World:
    def __init__(self, samples, policy, jobs, seed):
        self.words = empty(samples, BUDGET)
        self.policy, self.samples, self.now, self.random = policy, samples, 1, random.Random(seed)
        self.jobs = [Job(self, number, members) for number, members in enumerate(jobs)]

    def check(self):
        """With nobody inside a method: derived facts are those of the primary ones, and bounds hold."""
        looker = seat(self.words, 99, self.policy)
        looker.entries.heal()
        place = looker.entries.place
        held = np.flatnonzero((place & W.FORM > 0) & (place & W.ARRIVING == 0))
        assert sorted(looker.entries.cached().tolist()) == held.tolist()
        for form in (W.ENCODED, W.DECODED, W.AUGMENTED):
            total = int((place[(place & W.FORM) == form] >> W.BYTES_SHIFT).sum())
            assert total == self.words.view[W.BYTES + form - 1]
        assert self.words.view[W.BYTES : W.BYTES + 3].sum() <= ROOM >= self.words.view[W.BUDGET : W.BUDGET + 3].sum()
        if not self.words.view[W.DIVISION] >> 24:
            assert (self.words.view[W.BYTES : W.BYTES + 3] <= self.words.view[W.BUDGET : W.BUDGET + 3]).all()


steps = st.tuples(
    st.sampled_from(["ask", "ask", "make", "make", "make", "fail", "wait", "lost", "die", "leave", "divide"]),
    st.integers(0, 2),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(0, 14), st.integers(0, 60)),
)


@settings(max_examples=200)
@given(
    st.integers(0, len(POLICIES) - 1),
    st.integers(1, 18),
    st.booleans(),
    st.lists(steps, min_size=30, max_size=80),
    st.integers(0, 1000),
)
def test_every_sample_once_per_epoch_whoever_dies(policy, samples, shared, script, seed):
    """``shared``: the first two jobs are the ranks of one, each with its half."""
    everything = list(range(samples))
    halves = [everything[::2], everything[1::2] or everything] if shared and samples > 1 else [everything, everything]
    world = World(samples, POLICIES[policy], [*halves, everything], seed)
    for what, number, count, fuse in script:
        job = world.jobs[number]
        world.now += count
        world.words.fuse = fuse
        try:
            if job.seat is None:
                job.start()
            else:
                job.do(what, count)
        except Killed:
            job.seat = None
        finally:
            world.words.fuse = None
        if job.seat is not None and not job.seat.seated:
            job.seat = None
        world.check()
    for job in world.jobs:  # whatever happened, each comes to the end of its epoch
        if job.seat is None or not job.seat.seated:
            job.start()
        while job.drawn:
            job.ask(5)
        assert sorted(job.delivered) == sorted(job.members)


@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=20))
def test_bits_are_counted_without_the_help_of_numpy_too(words):
    some = np.array(words, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(W, "_count", None)
        assert W.ones(some).tolist() == [word.bit_count() for word in words]
    assert W.ones(some).tolist() == [word.bit_count() for word in words]


class TestServing:
    def test_misses_are_exchanged_for_what_another_job_read(self):
        words = empty(100, (0, 100 * SIZE, 0))
        first, second = joined(words, 1), joined(words, 2)
        read = first.request(np.arange(10), 0).servings
        assert {each.form for each in read} == {W.NOWHERE}
        assert all(made(first, each) for each in read)
        served = second.request(np.arange(50, 60), 0).servings
        assert {each.sample for each in served} == set(range(10))
        assert {each.form for each in served} == {W.DECODED}
        assert words.view[W.EXCHANGED] == 10

    def test_a_job_that_is_alone_gets_what_was_drawn(self):
        """Hits first would gain nothing, and leave the storage idle at first and the cores at last."""
        words = empty(40, (0, 20 * SIZE, 0))
        one = joined(words, 1)
        epoch(one, 40)
        one.begin(1, 0)
        cached = one.entries.cached().tolist()
        assert len(cached) == 20
        drawn = [*cached[:3], *sorted(set(range(40)).difference(cached))[:7]]
        answer = one.request(np.array(drawn), 0).servings
        assert [each.sample for each in answer] == drawn
        assert [each.form for each in answer] == [W.DECODED] * 3 + [W.NOWHERE] * 7
        again = one.request(np.array(drawn), 0).servings  # drawn twice: others in their place
        assert len({each.sample for each in again}.difference(drawn)) == 10
        joined(words, 2)
        rest = one.request(np.array(sorted({*range(40)}.difference(drawn, (each.sample for each in again)))[:5]), 0)
        assert {each.form for each in rest.servings} == {W.DECODED}

    def test_what_is_being_written_is_served_to_nobody(self):
        words = empty(20, (0, 20 * SIZE, 0))
        first, second = joined(words, 1), joined(words, 2)
        assert first.reserve(3, W.DECODED, SIZE, 0).granted
        assert {each.form for each in second.request(np.arange(20), 0).servings} == {W.NOWHERE}
        assert not second.reserve(3, W.DECODED, SIZE, 0).granted

    def test_an_augmentation_is_used_once_by_a_job(self):
        """Not again in its next epoch, though another job may still have use for it."""
        words = empty(6, (0, 0, 6 * SIZE))
        first, second = joined(words, 1), joined(words, 2)
        for each in first.request(np.arange(6), 0).servings:
            assert made(first, each)
        first.begin(1, 0)
        assert {each.form for each in first.request(np.arange(6), 0).servings} == {W.NOWHERE}
        assert {each.form for each in second.request(np.arange(6), 0).servings} == {W.AUGMENTED}

    def test_decoded_samples_serve_every_epoch(self):
        words = empty(6, (0, 6 * SIZE, 0))
        one = joined(words, 1)
        epoch(one, 6)
        assert {each.form for each in epoch(one, 6, number=1)} == {W.DECODED}

    def test_ranks_stay_within_their_share(self):
        words = empty(40, (0, 40 * SIZE, 0))
        other = joined(words, 9)
        assert len([made(other, each) for each in other.request(np.arange(40), 0).servings]) == 40
        halves = [np.arange(0, 40, 2), np.arange(1, 40, 2)]
        for rank, members in enumerate(halves):
            one = joined(words, rank + 1, members, group=7)
            served = [each.sample for first in range(0, 20, 5) for each in one.request(members[first:][:5], 0).servings]
            assert sorted(served) == members.tolist()

    def test_more_than_an_epoch_has_is_refused(self):
        one = joined(empty(10, (0, 0, 0)), 1)
        one.request(np.arange(8), 0)
        with pytest.raises(CacheError, match="3 samples were asked for, and the epoch has 2 left"):
            one.request(np.arange(3), 0)

    def test_without_exchange_what_was_drawn_is_served(self):
        one = joined(empty(10, (0, 50, 0)), 1, policy=Static())
        assert [each.sample for each in one.request(np.array([4, 2, 9]), 0).servings] == [4, 2, 9]
        with pytest.raises(CacheError, match="has seen in this epoch"):
            one.request(np.array([2]), 0)


class TestKeeping:
    def test_bytes_stay_within_the_budget_of_their_form(self):
        words = empty(50, (0, 35, 0))
        one = joined(words, 1)
        kept = [made(one, each, size=10, form=W.DECODED) for each in one.request(np.arange(20), 0).servings]
        assert sum(kept) == 3
        assert not one.reserve(30, W.ENCODED, 1, 0).granted
        assert not one.reserve(30, W.DECODED, 36, 0).granted

    def test_what_nobody_needs_gives_way(self):
        words = empty(4, (0, SIZE, 0))
        first, second = joined(words, 1), joined(words, 2)
        assert one_of(first, 0)
        assert second.request(np.array([0]), 0).servings[0].form == W.DECODED
        serving = first.request(np.array([1]), 0).servings[0]
        grant = first.reserve(serving.sample, W.DECODED, SIZE, 0)
        assert grant.granted
        assert grant.evicted == [(0, W.DECODED)]

    def test_what_is_needed_as_much_stays(self):
        words = empty(4, (0, SIZE, 0))
        first, _ = joined(words, 1), joined(words, 2)
        assert one_of(first, 0)
        first.request(np.array([1]), 0)
        assert not first.reserve(1, W.DECODED, SIZE, 0).granted

    def test_a_dead_job_stops_counting(self):
        words = empty(4, (0, SIZE, 0))
        first, second, third = (joined(words, name) for name in (1, 2, 3))
        assert second.request(np.array([1]), 0).servings[0].sample == 1
        assert one_of(first, 0)
        assert third.request(np.array([0]), 0).servings[0].form == W.DECODED
        first.request(np.array([1]), 0)
        assert not first.reserve(1, W.DECODED, SIZE, 0).granted  # the second job needs 0, the third 1
        later = TIMEOUT + 5
        for one in (first, third):
            one.beat(later)
        assert first.crowd(later).jobs == 2
        assert first.reserve(1, W.DECODED, SIZE, later).evicted == [(0, W.DECODED)]
        second.beat(later)
        assert first.crowd(later).jobs == 3

    def test_ranks_of_one_job_count_as_one(self):
        words = empty(8, (0, SIZE, 0))
        for rank in range(3):
            one = joined(words, rank + 1, np.arange(rank, 8, 3), group=5)
        assert one.crowd(0).jobs == 1

    def test_a_budget_that_moves_is_followed_without_ever_passing_the_sum(self):
        words = empty(60, (0, 300, 0))
        one, _ = joined(words, 1), joined(words, 2)
        for each in one.request(np.arange(30), 0).servings:
            assert made(one, each)
        one.agree(None, 300, 0)
        assert one.divide(Division(2, (67, 33, 0), fixed=False, before=(0, 100, 0)))
        for each in one.request(np.arange(30, 60), 0).servings:
            made(one, each, form=W.ENCODED)
            assert words.view[W.BYTES : W.BYTES + 3].sum() <= 300
        assert words.view[W.BYTES : W.BYTES + 3].tolist() == [200, 100, 0]

    def test_a_division_that_moves_is_followed_where_nobody_misses_anything(self):
        """At the pace of one sample in eight of a request; what goes is read again, and kept as it shall be."""
        words = empty(40, (0, 400, 0))
        one = joined(words, 1)
        epoch(one, 40)
        one.agree(None, 400, 0)
        assert one.divide(Division(2, (50, 50, 0), fixed=False, before=(0, 100, 0)))
        for number in range(1, 8):
            misses = sum(each.form == W.NOWHERE for each in epoch(one, 40, batch=8, number=number))
            assert misses <= 10  # one in eight and, of what went before it was its turn, as many again
        assert words.view[W.BYTES : W.BYTES + 3].tolist() == [200, 200, 0]
        assert misses == 0

    def test_no_rank_of_a_job_is_served_what_another_was_augmented(self):
        words = empty(8, (0, 0, 8 * SIZE))
        evens, odds = np.arange(0, 8, 2), np.arange(1, 8, 2)
        first, second = joined(words, 1, evens, group=5), joined(words, 2, odds, group=5)
        stranger = joined(words, 3)
        for each in first.request(evens, 0).servings:
            assert made(first, each)
        second.begin(1, 0, members=evens)
        assert {each.form for each in second.request(evens, 0).servings} == {W.NOWHERE}
        assert {each.form for each in stranger.request(evens, 0).servings} == {W.AUGMENTED}
        crowd = first.crowd(0)
        assert (crowd.jobs, first.entries.standing(evens, crowd).need.tolist()) == (2, [0, 0, 0, 0])

    def test_what_a_dead_process_of_a_rank_was_writing_is_given_up(self):
        words = empty(8, (0, 8 * SIZE, 0))
        one = joined(words, 1)
        one.request(np.arange(3), 0)
        for sample, process in enumerate((70, 71, 70)):
            assert one.reserve(sample, W.DECODED, SIZE, 0, writer=process).granted
        assert one.entries.writing(one.number) == [(0, 70), (1, 71), (2, 70)]
        joined(words, 2)  # takes a bit of its own in every word, but not of who is writing
        assert one.bury([0, 2, 5]) == [(0, W.DECODED), (2, W.DECODED)]
        assert one.settle(1)
        assert not one.settle(0)
        assert one.reserve(0, W.DECODED, SIZE, 0).granted

    def test_spent_entries_are_replaced_by_random_ones(self):
        words = empty(200, (0, 20 * SIZE, 0))
        first, second = (joined(words, name, policy=Opportunistic()) for name in (1, 2))
        for each in first.request(np.arange(20), 0).servings:
            assert made(first, each)
        answer = second.request(np.arange(100, 120), 0)
        assert sorted(answer.dropped) == [(sample, W.DECODED) for sample in range(20)]
        assert len(answer.refills) == 20
        for each in answer.refills:
            assert second.reserve(each.sample, each.keep, SIZE, 0).granted
            assert second.settle(each.sample, served=False)
        assert words.view[W.REFILLED] == 20

    def test_a_known_order_keeps_what_comes_soonest(self):
        words = empty(10, (0, SIZE, 0))
        one = joined(words, 1, policy=Soonest())
        one.due = np.arange(10, 20)
        one.request(np.array([5, 2]), 0)
        assert one.reserve(5, W.DECODED, SIZE, 0).granted
        assert one.settle(5)
        assert one.reserve(2, W.DECODED, SIZE, 0).evicted == [(5, W.DECODED)]

    def test_an_entry_that_is_not_there_is_forgotten(self):
        words = empty(4, (0, 4 * SIZE, 0))
        first, second = joined(words, 1), joined(words, 2)
        assert one_of(first, 0)
        first.lost(0, W.DECODED)
        assert second.request(np.array([0]), 0).servings[0].form == W.NOWHERE
        assert (words.view[W.LOST], words.view[W.BYTES + 1]) == (1, 0)


def one_of(one, sample):
    """Ask for a sample that must be read, and keep it."""
    (serving,) = one.request(np.array([sample]), 0).servings
    assert serving.sample == sample
    return made(one, serving, form=W.DECODED)


class TestSeats:
    def test_the_seat_of_a_dead_rank_is_taken_and_what_it_wrote_given_up(self):
        words = empty(10, (0, 100, 0))
        first = joined(words, 1)
        assert first.reserve(3, W.DECODED, SIZE, 0).granted
        for name in range(2, W.SEATS + 1):
            joined(words, name).beat(2 * TIMEOUT)
        last = seat(words, 100)
        assert last.join(2 * TIMEOUT) == [(3, W.DECODED)]
        assert not first.seated
        assert not first.settle(3)
        with pytest.raises(CacheError, match="62 ranks at once"):
            seat(words, 101).join(2 * TIMEOUT)

    def test_an_augmentation_is_used_once_also_by_a_rank_that_lost_its_seat(self):
        words = empty(10, (0, 0, 100))
        first = joined(words, 1)
        assert all(made(first, each) for each in first.request(np.arange(10), 0).servings)
        words[first.dims.seat(first.number) + W.J_NAME] = 0
        first.join(0)
        first.begin(1, 0)
        assert {each.form for each in first.request(np.arange(10), 0).servings} == {W.NOWHERE}
        assert {each.form for each in joined(words, 2).request(np.arange(10), 0).servings} == {W.AUGMENTED}

    def test_leaving(self):
        words = empty(10, (0, 100, 0))
        one = joined(words, 1)
        assert one.reserve(3, W.DECODED, SIZE, 0).granted
        assert one.leave() == [(3, W.DECODED)]
        assert one.leave() == []
        assert joined(words, 2).crowd(0).jobs == 1


@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (1.0, 0.6, 0.8)])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_it_does_what_the_simulation_says(speeds, share):
    trace = drawn(600, speeds, batch=8, epochs=7)
    bound = 1 - (1 - share) / sum(speeds)
    assert Replay(trace, Need(), share).run(warm_up=2).hit_rate == pytest.approx(bound, abs=0.01)


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 0.6), (1.0, 0.6, 0.8)])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_so_it_does_with_published_sampling(speeds, share):
    """An entry is spent when it was served as often as there are jobs, whichever they were."""
    trace, policy = drawn(320, speeds, batch=8, epochs=7), Opportunistic(refills=False)
    simulated = simulate(trace, policy, share, warm_up=2).hit_rate
    assert Replay(trace, policy, share).run(warm_up=2).hit_rate == pytest.approx(simulated, abs=0.03)


@functools.cache
def random_orders():
    """What the second of three jobs at unequal speeds is served, half of the dataset cached, epoch by epoch."""
    samples, batch = 60, 5
    words = np.zeros(W.Dims(samples).words, np.int64)
    ledger.found(words, W.Dims(samples), (0, 30 * SIZE, 0))
    seats = [Seat(words, words, policy=Need(), name=n + 1, group=n + 1, timeout=1 << 40, seed=n) for n in range(3)]
    rng, left, orders = np.random.default_rng(5), [[], [], []], []
    for one in seats:
        one.join(0)
    current = []
    for turn in range(60 * 12 * 3):
        job = rng.choice(3, p=[0.42, 0.25, 0.33])
        if not left[job]:
            left[job] = rng.permutation(samples).tolist()
            seats[job].begin(turn, turn)
            if job == 1 and current:
                orders.append(current)
                current = []
        asked, left[job] = left[job][:batch], left[job][batch:]
        answer = seats[job].request(np.array(asked), turn)
        for each in answer.servings:
            made(seats[job], each, turn)
        if job == 1:
            current += [each.sample for each in answer.servings]
    assert len(orders) > 40
    return np.array(orders)


class TestRandomness:
    def test_the_place_in_an_epoch_does_not_depend_on_the_index(self):
        orders = random_orders()
        places = np.argsort(orders, axis=1)
        along = [np.corrcoef(np.arange(60), each)[0, 1] for each in places]
        assert abs(np.mean(along)) < 4 / np.sqrt(60 * len(orders))

    def test_no_sample_always_comes_early(self):
        """The mean place of a sample over n epochs scatters as that of a uniform one, or a little more."""
        orders = random_orders()
        places = np.argsort(orders, axis=1)
        scatter = places.mean(axis=0).std()
        assert scatter < 1.6 * 60 / np.sqrt(12 * len(orders))

    def test_two_epochs_have_no_more_pairs_of_neighbours_in_common_than_chance(self):
        orders = random_orders()

        def pairs(order):
            batches = order.reshape(-1, 5)
            return {frozenset((a, b)) for batch in batches for a in batch for b in batch if a < b}

        shared = [len(pairs(a) & pairs(b)) for a, b in pairwise(orders)]
        chance = 120 * 120 / (60 * 59 / 2)
        assert np.mean(shared) < 1.6 * chance
