"""How a cache's room is divided: facts that ranks of all jobs agree on, written by any of them."""

import secrets
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache import division
from headrace.cache import words as W
from headrace.cache.division import Division, Facts, Rank, Sums
from headrace.cache.ledger import Seat
from headrace.cache.ledger_files import described
from headrace.cache.local_book import LocalBook
from headrace.cache.policies import Need
from headrace.cache.probing import GUESS, probe
from headrace.cache.redis import RedisTier
from headrace.cache.redis_book import RedisBook
from headrace.cache.shm import SharedMemoryTier
from tests.cache import servers
from tests.cache.memory import Killed, empty
from tests.cache.servers import PASSWORD, USER

SCOPES = ("a" * 32, "b" * 32, "c" * 32)
BUDGET = (0, 1000, 0)
parts = st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda two: sum(two) <= 100)
divisions = parts.map(lambda two: (*two, 100 - sum(two)))


@given(st.integers(0, 1 << 30), divisions, st.booleans(), divisions, st.integers(0, 1 << 40), st.integers(0, 2))
def test_a_division_is_a_few_words(number, now, fixed, before, promised, limit):
    found = Division(number, now, fixed, before, promised, promised // 2, limit)
    assert division.unpack(division.pack(found)) == found
    assert len(division.pack(found)) == division.PACKED


@given(st.integers(1, 1 << 45), divisions)
def test_the_room_is_given_away_and_not_more(room, now):
    budget = division.budgets(room, now)
    assert sum(budget) <= room
    assert all(abs(size - room * part / 100) <= 2 for size, part in zip(budget, now, strict=True))
    assert all(size == 0 for size, part in zip(budget, now, strict=True) if part == 0)
    if room >= 1000:
        assert division.parts_of(budget) == pytest.approx(now, abs=1)


@given(st.integers(0, 12))
def test_whoever_dies_while_dividing_leaves_a_division_that_holds(fuse):
    words = empty(4, BUDGET)
    one = Seat(words, words.view, policy=Need(), name=1, group=1, timeout=10, seed=0)
    one.agree(None, 1000, 0)
    words.fuse = fuse
    with suppress(Killed):
        one.divide(Division(2, (40, 60, 0), fixed=False, before=(0, 100, 0)))
    words.fuse = None
    one.entries.heal()
    now = division.current(words.view).parts
    assert now in {(0, 100, 0), (40, 60, 0)}
    assert words.view[W.BUDGET : W.BUDGET + 3].tolist() == list(division.budgets(1000, now))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with servers.one(tmp_path_factory.mktemp("redis")) as running:
        yield running


class Books:
    """Two ranks of two jobs at one ledger."""

    def __init__(self, make):
        self.make, self.opened = make, []

    def open(self, **options):
        book = self.make(**options)
        self.opened.append(book)
        book.begin(0)
        return book


@pytest.fixture(params=["shm", "redis"])
def books(request, name, server):
    if request.param == "shm":
        made = Books(lambda **o: LocalBook(name, samples=20, scopes=SCOPES, budget=BUDGET, policy=Need(), **o))
        yield made
        for book in made.opened:
            book.leave()
        return
    tier = RedisTier(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", 1 << 20, secrets.token_hex(4))
    made = Books(lambda **o: RedisBook(tier.server, "d" * 16, samples=20, budget=BUDGET, **o))
    yield made
    for book in made.opened:
        book.leave()
    tier.close()


def planned(number, now, promised=7):
    return Division(number, now, fixed=False, before=(0, 100, 0), promised=promised, promised_before=5, limit=1)


class TestAgreement:
    def test_all_jobs_see_what_one_of_them_planned(self, books):
        first, second = books.open(), books.open()
        first.agree(None, 1000)
        number = second.facts().division.number
        assert second.divide(planned(number + 1, (30, 70, 0)))
        assert first.facts().division == planned(number + 1, (30, 70, 0))
        assert first.facts().room == 1000

    def test_who_planned_from_what_does_not_hold_any_more_is_refused(self, books):
        first, second = books.open(), books.open()
        first.agree(None, 1000)
        number = first.facts().division.number
        assert first.divide(planned(number + 1, (30, 70, 0)))
        assert not second.divide(planned(number + 1, (90, 10, 0)))
        assert second.facts().division.parts == (30, 70, 0)

    def test_what_a_user_fixed_is_not_planned(self, books):
        first, second = books.open(), books.open()
        first.agree((10, 90, 0), 1000)
        second.agree(None, 1000)
        now = second.facts().division
        assert (now.parts, now.fixed) == ((10, 90, 0), True)
        assert not second.divide(planned(now.number + 1, (30, 70, 0)))

    def test_it_holds_until_a_rank_is_alone_that_asks_for_nothing(self, books):
        first = books.open()
        first.agree((10, 90, 0), 1000)
        first.leave()
        second = books.open()
        second.agree(None, 1000)
        now = second.facts().division
        assert (now.parts, now.fixed) == ((10, 90, 0), False)
        assert second.divide(planned(now.number + 1, (30, 70, 0)))

    def test_who_fixes_last_is_followed(self, books):
        first, second = books.open(), books.open()
        first.agree((10, 90, 0), 1000)
        second.agree((20, 80, 0), 1000)
        assert first.facts().division.parts == (20, 80, 0)

    def test_another_room_is_divided_alike(self, books):
        first = books.open()
        first.agree((10, 90, 0), 1000)
        first.agree((10, 90, 0), 500)
        assert first.facts().room == 500
        assert not first.reserve(1, W.DECODED, 451).granted
        assert first.reserve(1, W.DECODED, 450).granted


class TestMeasures:
    def test_are_added_up_and_fade_when_the_division_changes(self, books):
        first, second = books.open(), books.open()
        first.agree(None, 1000)
        for book in (first, second):
            book.measure(Sums(fetch=100, fetched=2, read_bytes=1 << 40))
        assert first.facts().sums == Sums(fetch=200, fetched=4, read_bytes=1 << 41)
        assert first.divide(planned(first.facts().division.number + 1, (30, 70, 0)))
        assert second.facts().sums == Sums(fetch=100, fetched=2, read_bytes=1 << 40)

    def test_what_has_no_room_for_one_of_its_size_leaves_it_to_another_form(self, books):
        first = books.open()
        first.agree((40, 60, 0), 1000)
        first.measure(Sums(encoded_bytes=60, encoded_sized=2, decoded_bytes=900, decoded_sized=2))
        (one,) = first.request(np.array([0])).servings
        assert one.keep == W.DECODED
        assert first.reserve(0, W.DECODED, 450).granted
        assert first.settle(0)
        (two,) = first.request(np.array([1])).servings
        assert two.keep == W.ENCODED  # 150 bytes are left for decoded ones, which take 450

    def test_ranks_report_for_themselves_until_they_leave(self, books):
        first, second = books.open(group=7), books.open(group=7)
        first.report(Rank(2, 10.5, 3.25))
        second.report(Rank(3, 1.0, 1.0, 2.0, 1.5, 99))
        assert first.facts().ranks == [(7, Rank(2, 10.5, 3.25)), (7, Rank(3, 1.0, 1.0, 2.0, 1.5, 99))]
        second.leave()
        assert [rank.lanes for _, rank in first.facts().ranks] == [2]

    def test_a_process_that_stands_in_measures_for_its_rank(self, books):
        first, worker = books.open(), books.open()
        worker.stand_in(first.badge)
        worker.measure(Sums(decode=5, decoded=1))
        assert first.facts().sums == Sums(decode=5, decoded=1)

    def test_what_dead_processes_reserved_is_given_up(self, books):
        first = books.open()
        first.request(np.arange(4))
        assert first.reserve(0, W.DECODED, 10).granted
        assert first.bury(lambda process: True) == []
        assert first.bury(lambda process: False) == [(0, W.DECODED)]
        assert not first.settle(0)
        assert first.counts()["bytes_decoded"] == 0


def test_figures_are_means_and_jobs_at_half_speed_count_half():
    sums = Sums(fetch=4_000_000, fetched=2, encoded_bytes=100, encoded_sized=4)
    ranks = [(1, Rank(2, 50.0, 10.0)), (1, Rank(2, 50.0, 10.0)), (2, Rank(1, 10.0, 10.0)), (3, Rank())]
    found = dict(division.figures(Facts(10, 1000, sums, ranks, planned(1, (0, 100, 0)))))
    assert found == {
        "fetch_seconds": 0.002,
        "encoded_bytes": 25,
        "jobs": 1.5,
        "lanes": 5,
        "demand": 110,
        "speed": 30,
    }


def test_jobs_of_a_host_share_its_cores():
    ranks = [(1, Rank(cores=2.0, host=5)), (1, Rank(cores=2.0, host=5)), (2, Rank(cores=4.0, host=5))]
    assert division.cores_of(ranks) == 4.0
    assert division.cores_of([*ranks, (1, Rank(cores=2.0, host=6))]) == 6.0
    assert division.cores_of([(1, Rank())]) == 0.0


def test_what_is_known_of_a_cache_is_seen_from_outside(name):
    book = LocalBook(name, samples=20, scopes=SCOPES, budget=BUDGET, policy=Need())
    book.begin(0)
    book.agree((25, 75, 0), 1000)
    (facts,) = described(name)
    assert (facts.samples, facts.room, facts.division.parts, len(facts.ranks)) == (20, 1000, (25, 75, 0), 1)
    book.leave()


def test_a_probe_leaves_nothing_behind_and_a_full_tier_is_guessed(name):
    tier = SharedMemoryTier(name, 2 << 20)
    room = tier.usage()
    try:
        speed = probe(tier)
        assert 0 < speed.entry < 10
        assert 0 <= speed.byte < 1e-3
        assert tier.usage().entries == 0
    finally:
        tier.close()

    class Full:
        def usage(self):
            return room

        def put(self, key, size, write):
            return False

        def delete(self, keys):
            raise AssertionError

    assert probe(Full()) == GUESS
