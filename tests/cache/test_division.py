"""How a cache's room is divided: facts that ranks of all jobs agree on, written by any of them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.cache import division
from headrace.cache.division import DivisionFacts, DivisionRecord, Rank, Sums

parts = st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda two: sum(two) <= 100)
divisions = parts.map(lambda two: (*two, 100 - sum(two)))


@given(st.integers(0, 1 << 30), divisions, st.booleans(), divisions, st.integers(0, 1 << 40), st.integers(0, 4))
def test_a_division_is_a_few_words(number, now, fixed, before, promised, limit):
    found = DivisionRecord(number, now, fixed, before, promised, promised // 2, limit)
    assert division.unpack(division.pack(found)) == found
    assert len(division.pack(found)) == division.PACKED


@given(st.integers(1, 1 << 45), divisions)
def test_the_room_is_given_away_and_not_more(room, now):
    budget = division.budgets(room, now)
    assert sum(budget) <= room
    assert all(abs(size - room * part / 100) <= 2 for size, part in zip(budget, now, strict=True))
    assert all(size == 0 for size, part in zip(budget, now, strict=True) if part == 0)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=9))
def test_words_that_make_no_sense_are_no_division(words):
    found = division.unpack(words)
    assert found is None or sum(found.parts) == 100


def planned(number, now, promised=7):
    return DivisionRecord(number, now, fixed=False, before=(0, 100, 0), promised=promised, promised_before=5, limit=1)


START = (0, 100, 0)


class TestAgreement:
    def test_whoever_comes_first_begins_with_what_all_begin_with(self):
        assert division.agreed(None, None, START, alone=True) == DivisionRecord(0, START, fixed=False, before=START)
        assert division.agreed(None, (10, 90, 0), START, alone=True).fixed

    def test_what_a_user_fixed_holds_while_others_are_there(self):
        now = DivisionRecord(3, (10, 90, 0), fixed=True, before=START)
        assert division.agreed(now, None, START, alone=False) is None
        assert division.agreed(now, (10, 90, 0), START, alone=False) is None

    def test_it_holds_until_a_rank_is_alone_that_asks_for_nothing(self):
        now = DivisionRecord(3, (10, 90, 0), fixed=True, before=START)
        assert division.agreed(now, None, START, alone=True) == DivisionRecord(
            4, now.parts, fixed=False, before=now.parts
        )

    def test_who_fixes_last_is_followed(self):
        now = DivisionRecord(3, (10, 90, 0), fixed=True, before=START)
        assert division.agreed(now, (20, 80, 0), START, alone=False).parts == (20, 80, 0)


def test_figures_are_means_and_jobs_at_half_speed_count_half():
    sums = Sums(fetch=4_000_000, fetched=2, encoded_bytes=100, encoded_sized=4)
    ranks = [(1, Rank(2, 50.0, 10.0)), (1, Rank(2, 50.0, 10.0)), (2, Rank(1, 10.0, 10.0)), (3, Rank())]
    found = dict(division.figures(DivisionFacts(10, 1000, sums, ranks, planned(1, (0, 100, 0)))))
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
