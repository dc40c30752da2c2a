"""What is worth keeping, by hand."""

import pytest

from headrace.plan.keeping import LOCAL, REMOTE, TRIED, WINDOW, KeepingWorth

CHEAP, DEAR = 1e-5, 1e-3
SIZE = 12_288


def test_cheap_samples_are_not_kept_from_the_first_one_on():
    worth = KeepingWorth(LOCAL)
    assert not any(worth.pays(CHEAP, SIZE) for _ in range(3 * WINDOW))


@pytest.mark.parametrize("size", [1, SIZE, 786_432])
def test_what_takes_longer_than_keeping_it_and_having_it_is_kept(size):
    worth = KeepingWorth(LOCAL)
    assert worth.pays(LOCAL.keep + LOCAL.read + (LOCAL.keep_byte + LOCAL.read_byte) * size, size)
    assert not worth.pays(LOCAL.read + LOCAL.read_byte * size, size), "what takes as long as a hit never pays"


def test_dear_ones_among_cheap_ones_are_kept_alone():
    worth = KeepingWorth(LOCAL)
    kept = [number for number in range(3 * WINDOW) if worth.pays(CHEAP if number % 100 else DEAR / 2, SIZE)]
    assert kept == [number for number in range(3 * WINDOW) if number % 100 == 0]


def test_where_one_takes_the_time_of_all_all_are_kept():
    """A store that reads a hundred rows with the first of them."""
    worth = KeepingWorth(LOCAL)
    kept = [worth.pays(CHEAP if number % 100 else 100 * DEAR, SIZE) for number in range(4 * WINDOW)]
    assert all(kept[2 * WINDOW :])


def test_what_is_done_once_keeps_nothing_else():
    worth = KeepingWorth(LOCAL)
    kept = [worth.pays(CHEAP if number else 1.0, SIZE) for number in range(4 * WINDOW)]
    assert sum(kept) == 1


def test_a_slower_machine_shows_in_what_keeping_took():
    worth, took = KeepingWorth(LOCAL), 3e-5
    assert worth.pays(took, SIZE)
    for _ in range(TRIED):
        worth.kept(2e-4, SIZE)
        worth.settled(0.0)
    assert not worth.pays(took, SIZE)
    worth.kept(LOCAL.keep, SIZE)  # the least counts: others may have used the core
    worth.settled(0.0)
    assert worth.pays(took, SIZE)


def test_a_server_costs_more():
    assert KeepingWorth(REMOTE).least(SIZE) > 10 * KeepingWorth(LOCAL).least(SIZE)
