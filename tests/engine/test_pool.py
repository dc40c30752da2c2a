"""Rows that come with others: read once, kept in bounded memory, given when they are asked for."""

import random

import pytest

from headrace.core.errors import MissingKey
from headrace.core.options import Prefetch, Retry
from headrace.fetching.block_pool import KEPT, BlockPool, Keeping, Waiting
from headrace.fetching.fetch_loop import StoreOrders
from headrace.fetching.fetcher import Fetcher
from headrace.store.reading.neighbours import NeighbourBlock, marked, unmarked
from tests.engine.remote import RemoteNumbers, RemoteShards
from tests.engine.test_fetcher import Collected, looked

MIB = 1 << 20


def kept(offset, room=100):
    return Keeping(offset, 0, room, 0, room, 0, 0)


def test_a_key_and_its_block_are_one_text():
    block = NeighbourBlock(7, 2, 0)
    assert unmarked(marked("a key 1 2 3", block)) == ("a key 1 2 3", block)
    assert unmarked("a key 1 2 3") == ("a key 1 2 3", None)


def test_what_was_kept_longest_gives_way():
    freed = []
    pool = BlockPool(1000, freed.append)
    for number in range(8):
        assert pool.makes_room(100)
        pool.keep(number, kept(number))
    assert freed == []
    assert pool.bytes == KEPT * 1000
    assert pool.makes_room(150)
    assert freed == [0, 1]
    assert not pool.makes_room(801)
    assert pool.take(1) is None
    assert pool.take(7).offset == 7
    assert pool.take(7) is None  # it is somebody's now


def test_a_block_is_read_once():
    pool = BlockPool(1000, lambda _: None)
    assert pool.rows(NeighbourBlock(5, 1, 1)) == 3
    assert pool.join(NeighbourBlock(5, 1, 1), Waiting(0, "5", 5))
    assert pool.others == 2
    assert pool.rows(NeighbourBlock(6, 2, 0)) == 0
    assert not pool.join(NeighbourBlock(6, 2, 0), Waiting(1, "6", 6))
    assert pool.join(NeighbourBlock(9, 1, 1), Waiting(2, "9", 9))
    pool.drop([0])
    assert [waiting.number for waiting in pool.end(NeighbourBlock(4, 0, 2))] == [1]
    assert pool.others == 2


@pytest.fixture
def fetcher_of(tmp_path):
    made = []

    def make(store, memory=64 * MIB, batch=8, **options):
        fetcher = Fetcher(
            StoreOrders(
                store=store,
                prefetch=Prefetch(memory=memory, **options),
                retry=Retry(attempts=2, first=0.01),
                batch=batch,
            )
        )
        made.append(fetcher)
        return fetcher

    yield make
    for fetcher in made:
        fetcher.close()


def text_of(number, size, rows):
    """The key of a sample with the block of ``size`` that it lies in, none beyond ``rows``."""
    first = number - number % size
    last = min(first + size, rows) - 1
    return marked(str(number), NeighbourBlock(number, number - first, last - number))


def brought(fetcher, order, text, ahead=40):
    """The rows of these samples, by number; each is freed as it comes, ``ahead`` of them are asked for at once."""
    found, rows, asked, places = Collected(), {}, 0, fetcher.number(len(order))
    while len(rows) < len(order):
        if asked < len(order) and asked - len(rows) < ahead:
            upto = min(len(order), asked + 8)
            fetcher.ask({places + at: text(order[at]) for at in range(asked, upto)}, found)
            asked = upto
        fetcher.pump()
        for at, place in list(found.items()):
            number = order[at - places]
            if number not in rows:
                try:
                    rows[number] = bytes(fetcher.arena.read(place, str(number)).payload)
                except MissingKey:
                    rows[number] = None
                fetcher.taken([place])
                fetcher.free([place])
        if len(rows) < asked:
            looked(fetcher)
    return rows


def wanted(numbers, size=50):
    return {number: (str(number).encode() * size)[:size] for number in numbers}


def shuffled(count, seed=0):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def test_each_block_is_one_request_whatever_the_order(fetcher_of, tmp_path):
    store = RemoteShards(300, per=100, log=str(tmp_path / "log"))
    rows = brought(fetcher_of(store), shuffled(300), lambda number: text_of(number, 10, 300))
    assert rows == wanted(range(300))
    assert len(store.requests()) == 30
    assert {count for _, count in store.requests()} == {10}


def test_counts_are_those_of_rows(fetcher_of, tmp_path):
    fetcher = fetcher_of(RemoteShards(100, log=str(tmp_path / "log")))
    brought(fetcher, shuffled(100), lambda number: text_of(number, 10, 100))
    assert (fetcher.network.rows, fetcher.network.bytes) == (100, 100 * 50)


def test_memory_is_kept_whatever_is_kept(fetcher_of, tmp_path):
    """Blocks of which half is never asked for, ten times the memory: the oldest of what is kept gives way."""
    store = RemoteShards(1000, per=1000, size=10_000, log=str(tmp_path / "log"))
    fetcher = fetcher_of(store, memory=MIB)
    order = [number for number in shuffled(1000) if number % 2]
    rows = brought(fetcher, order, lambda number: text_of(number, 10, 1000))
    assert rows == wanted(order, 10_000)
    assert len(store.requests()) < 500 + 500


def test_blocks_larger_than_the_memory_are_read_sample_by_sample(fetcher_of, tmp_path):
    store = RemoteShards(64, per=64, size=100_000, log=str(tmp_path / "log"))
    fetcher = fetcher_of(store, memory=MIB)
    rows = brought(fetcher, shuffled(64), lambda number: text_of(number, 64, 64), ahead=8)
    assert rows == wanted(range(64), 100_000)


def test_a_row_that_is_not_there_fails_alone(fetcher_of, tmp_path):
    store = RemoteShards(40, missing={7}, log=str(tmp_path / "log"))
    rows = brought(fetcher_of(store), shuffled(40), lambda number: text_of(number, 10, 40))
    assert rows == wanted(range(40)) | {7: None}


def test_a_store_that_reads_one_by_one_is_asked_so(fetcher_of):
    rows = brought(fetcher_of(RemoteNumbers(40)), shuffled(40), lambda number: text_of(number, 10, 40))
    assert rows == wanted(range(40))


def test_a_block_that_was_promised_wrongly_costs_a_request(fetcher_of, tmp_path):
    store = RemoteShards(40, per=10, log=str(tmp_path / "log"))
    rows = brought(
        fetcher_of(store), list(range(40)), lambda number: marked(str(number), NeighbourBlock(number, 20, 20))
    )
    assert rows == wanted(range(40))


def test_whoever_comes_next_is_given_nothing_that_was_let_go(fetcher_of, tmp_path):
    """A fetcher that rests gives its memory back: what it had kept there is read again."""
    store = RemoteShards(40, log=str(tmp_path / "log"))
    fetcher = fetcher_of(store)
    assert brought(fetcher, [3], lambda number: text_of(number, 10, 40)) == wanted([3])
    assert fetcher.rest()
    assert brought(fetcher, shuffled(40), lambda number: text_of(number, 10, 40)) == wanted(range(40))


def test_a_fetcher_that_dies_has_kept_nothing(fetcher_of, tmp_path):
    store = RemoteShards(100, kills={55}, marks=str(tmp_path), log=str(tmp_path / "log"))
    rows = brought(fetcher_of(store), shuffled(100), lambda number: text_of(number, 10, 100))
    assert rows == wanted(range(100))
