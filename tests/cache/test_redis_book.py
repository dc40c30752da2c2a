"""The ledger on a real server: jobs of several hosts in any order, deaths, and a server that goes away."""

import random
import secrets

import numpy as np
import pytest

from headrace.cache import redis_server
from headrace.cache import words as W
from headrace.cache.codec import Codec
from headrace.cache.redis import RedisTier
from headrace.cache.redis_book import RedisBook
from headrace.cache.share import Share
from headrace.cache.trace import drawn
from headrace.core.errors import CacheError
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER

SIZE = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with servers.one(tmp_path_factory.mktemp("redis")) as running:
        yield running


def connected(server, namespace=None):
    return RedisTier(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", 1 << 20, namespace or secrets.token_hex(4))


@pytest.fixture
def tier(server):
    found = connected(server)
    yield found
    found.close()


def book(tier, samples, budget, **options):
    return RedisBook(tier.server, "d" * 16, samples=samples, budget=budget, **options)


def joined(tier, samples=40, budget=(0, 400, 0), members=None, **options):
    found = book(tier, samples, budget, **options)
    found.begin(0, members=members)
    return found


def made(one, serving, form=None):
    form = serving.keep if form is None else form
    return bool(form) and one.reserve(serving.sample, form, SIZE).granted and one.settle(serving.sample)


class Job:
    """What it delivered survives it."""

    def __init__(self, tier, samples, members, rng):
        self.tier, self.samples, self.members, self.rng = tier, samples, members, rng
        self.epoch, self.delivered, self.left, self.book = 0, [], [], None

    def start(self):
        self.book = book(self.tier, self.samples, (30, 80, 40), silence=3600)
        self._begin()

    def _begin(self):
        self.book.begin(self.epoch, members=np.array(self.members), done=self.delivered)
        self.left = [each for each in self.members if each not in self.delivered]
        self.rng.shuffle(self.left)

    def step(self, count):
        if not self.left:
            assert sorted(self.delivered) == self.members
            self.epoch, self.delivered = self.epoch + 1, []
            self._begin()
        asked, self.left = self.left[:count], self.left[count:]
        answer = self.book.request(np.array(asked))
        assert len(answer.servings) == len(asked)
        for each in answer.servings:
            assert each.sample in self.members
            assert each.sample not in self.delivered
            self.delivered.append(each.sample)
            if each.form == W.NOWHERE and self.rng.random() < 0.8:
                made(self.book, each)


@pytest.mark.parametrize("seed", range(12))
def test_every_sample_once_per_epoch_whoever_dies(tier, seed):
    rng = random.Random(seed)
    samples = rng.randint(2, 24)
    everything = list(range(samples))
    shares = [everything[::2], everything[1::2], everything]
    jobs = [Job(tier, samples, members, rng) for members in shares]
    for _ in range(60):
        job = rng.choice(jobs)
        if job.book is None or rng.random() < 0.05:  # it dies, and comes back with what it delivered
            job.start()
        else:
            job.step(rng.randint(1, 6))
    for job in jobs:
        if job.book is None:
            job.start()
        while job.left:
            job.step(4)
        assert sorted(job.delivered) == job.members


def test_misses_are_exchanged_for_what_another_host_read(tier):
    first, second = joined(tier), joined(tier)
    read = first.request(np.arange(10)).servings
    assert {each.form for each in read} == {W.NOWHERE}
    assert all(made(first, each) for each in read)
    served = second.request(np.arange(20, 30)).servings
    assert {each.sample for each in served} == set(range(10))
    assert {each.form for each in served} == {W.DECODED}


def test_a_job_that_is_alone_gets_what_was_drawn(tier):
    other = joined(tier)
    assert all(made(other, each) for each in other.request(np.arange(10)).servings)
    other.leave()
    one = joined(tier)
    drawn = [2, 5, 8, 20, 21, 22]
    served = one.request(np.array(drawn)).servings
    assert sorted(each.sample for each in served) == drawn
    assert {each.sample for each in served if each.form} == {2, 5, 8}
    again = one.request(np.array(drawn)).servings  # drawn twice: others in their place
    assert len({each.sample for each in again}.difference(drawn)) == len(drawn)
    second = joined(tier)
    left = [sample for sample in range(20) if sample not in drawn and sample not in {each.sample for each in again}]
    assert one.request(np.array(left[:1])).servings[0].sample < 10
    second.leave()


def test_what_is_being_written_is_served_to_nobody(tier):
    first, second = joined(tier), joined(tier)
    assert first.reserve(3, W.DECODED, SIZE).granted
    assert not second.reserve(3, W.DECODED, SIZE).granted
    assert {each.form for each in second.request(np.arange(10)).servings} == {W.NOWHERE}


def test_an_augmentation_is_used_once_by_a_job(tier):
    first, second = (joined(tier, 6, (0, 0, 60)) for _ in range(2))
    assert all(made(first, each) for each in first.request(np.arange(6)).servings)
    first.begin(1)
    assert {each.form for each in first.request(np.arange(6)).servings} == {W.NOWHERE}
    assert {each.form for each in second.request(np.arange(6)).servings} == {W.AUGMENTED}


def test_bytes_stay_within_the_budget_and_what_nobody_needs_gives_way(tier):
    first, second = (joined(tier, 4, (0, SIZE, 0)) for _ in range(2))
    (serving,) = first.request(np.array([0])).servings
    assert made(first, serving, W.DECODED)
    (other,) = first.request(np.array([1])).servings
    assert not first.reserve(other.sample, W.DECODED, SIZE).granted  # the second job needs both
    assert second.request(np.array([2])).servings[0].sample == 0
    assert first.reserve(1, W.DECODED, SIZE).evicted == [(0, W.DECODED)]
    assert not first.reserve(2, W.DECODED, SIZE + 1).granted


def test_a_silent_rank_stops_counting_and_what_it_wrote_is_given_up(tier):
    first = joined(tier, silence=3600)
    assert first.reserve(3, W.DECODED, SIZE).granted
    second = book(tier, 40, (0, 400, 0), silence=-1)  # everybody was silent for too long
    assert second.begin(0) == [(3, W.DECODED)]
    assert not first.settle(3)  # its seat is gone; it takes another
    served = [each.sample for at in range(0, 40, 10) for each in first.request(np.arange(at, at + 10)).servings]
    assert sorted(served) == list(range(40))


@pytest.mark.parametrize("seed", range(6))
def test_a_server_may_evict_any_part_of_the_ledger(tier, seed, caplog):
    """As one with an eviction policy does. It costs hits, and later ones come back."""
    rng, samples = random.Random(seed), 60
    one, other = (joined(tier, samples, (100, 100, 100), silence=3600) for _ in range(2))
    for epoch in range(3):
        left = {one: samples, other: samples}
        for each in left:
            each.begin(epoch)
        served = {one: [], other: []}
        while any(left.values()):
            who = rng.choice([each for each in left if left[each]])
            asked = np.array([number for number in range(samples) if number not in served[who]][:5])
            for serving in who.request(asked).servings:
                served[who].append(serving.sample)
                if rng.random() < 0.4 and (names := tier.server.names(f"{tier.server.prefix}:*")):
                    tier.server.client.delete(rng.choice(names))
                if serving.keep and who.reserve(serving.sample, serving.keep, SIZE).granted:
                    if rng.random() < 0.4 and (names := tier.server.names(f"{tier.server.prefix}:*")):
                        tier.server.client.delete(rng.choice(names))
                    who.settle(serving.sample)
                counts = who.counts()
                assert all(count >= 0 for count in counts.values()), counts
            left[who] = samples - len(served[who])
        assert [sorted(found) for found in served.values()] == [list(range(samples))] * 2
    assert not caplog.records, "the server's functions fail over what is missing"
    hits = 0
    for epoch in (3, 4):  # undisturbed
        one.begin(epoch)
        for at in range(0, samples, 5):
            for serving in one.request(np.arange(at, at + 5)).servings:
                hits += serving.form > 0
                made(one, serving)
    assert hits >= 10


def test_what_a_job_used_is_not_forgotten_with_its_seat(tier):
    """An augmentation is used once by a job, also if it was taken for dead, or the server forgot what it had used."""
    one = joined(tier, 6, (0, 0, 60))
    assert all(made(one, each) for each in one.request(np.arange(6)).servings)
    for part in ("names", "used:0"):
        tier.server.client.delete(f"{one._prefix}:{part}")
        for epoch in (1, 2):
            one.begin(epoch)
            assert {each.form for each in one.request(np.arange(6)).servings} == {W.NOWHERE}
    assert {each.form for each in joined(tier, 6, (0, 0, 60)).request(np.arange(6)).servings} == {W.AUGMENTED}


def test_leaving_and_lost_entries(tier):
    first, second = joined(tier), joined(tier)
    assert first.reserve(3, W.DECODED, SIZE).granted
    assert first.leave() == [(3, W.DECODED)]
    (serving,) = second.request(np.array([5])).servings
    assert made(second, serving, W.DECODED)
    second.lost(5, W.DECODED)
    assert joined(tier).request(np.array([5])).servings[0].form == W.NOWHERE


def test_more_than_an_epoch_has_is_refused(tier):
    one = joined(tier, 10)
    one.request(np.arange(8))
    with pytest.raises(CacheError, match="3 samples were asked for, and the epoch has 2 left"):
        one.request(np.arange(3))


def test_a_server_that_goes_away_costs_hits_and_no_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_server, "RETRY", 0.0)
    with servers.one(tmp_path) as server:
        tier = connected(server)
        first, second = joined(tier), joined(tier)
        served = {0: [], 1: []}

        def step(number, one, at):
            for each in one.request(np.arange(at, at + 10)).servings:
                served[number].append(each.sample)
                made(one, each)

        step(0, first, 0)
        step(1, second, 0)
        server.kill()
        step(0, first, 10)
        step(1, second, 10)
        server.start()
        for at in (20, 30):
            step(0, first, at)
            step(1, second, at)
        assert [sorted(each) for each in served.values()] == [list(range(40))] * 2
        tier.close()


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_hits_are_near_the_bound(tier, share):
    samples, speeds = 240, (1.0, 0.6, 0.8)
    trace = drawn(samples, speeds, batch=6, epochs=7)
    books = [book(tier, samples, (0, round(share * samples) * SIZE, 0), silence=3600) for _ in speeds]
    epochs, hits, served = {}, 0, 0
    for request in trace.requests:
        one = books[request.job]
        if epochs.get(request.job) != request.epoch:
            epochs[request.job] = request.epoch
            one.begin(request.epoch)
        answer = one.request(request.samples)
        for each in answer.servings:
            made(one, each)
        if request.time >= 2 - 1e-9:
            served += len(answer.servings)
            hits += sum(each.form != W.NOWHERE for each in answer.servings)
    assert hits / served == pytest.approx(1 - (1 - share) / sum(speeds), abs=0.03)


def test_a_share_of_a_cache_on_a_server(server):
    """Two hosts, each with connections of its own."""
    namespace, scopes = secrets.token_hex(4), ("a" * 32, "b" * 32, "c" * 32)
    tiers = [connected(server, namespace) for _ in range(2)]
    first, second = (Share(each, book(each, 40, (0, 20_000, 0)), scopes) for each in tiers)
    for share in (first, second):
        share.begin(0)
    for each in first.request(np.arange(10)).servings:
        assert first.keep(each.sample, each.keep, Codec().encode(np.full(100, each.sample, np.uint8)))
    hits = second.request(np.arange(20, 30)).servings
    with tiers[1].reading() as reading:
        views = second.read(reading, hits)
        assert [int(Codec().decode(view)[0]) for view in views] == [each.sample for each in hits]
    tiers[0].clear()
    (gone,) = first.request(np.array([39])).servings
    assert gone.form == W.NOWHERE  # it has seen all that is held
    third = Share(tiers[0], book(tiers[0], 40, (0, 20_000, 0)), scopes)
    third.begin(0)
    served = third.request(np.arange(5)).servings
    with tiers[0].reading() as reading:
        assert third.read(reading, served) == [None] * 5
    for share in (first, second, third):
        share.close()
        share.close()
    for tier in tiers:
        tier.close()
