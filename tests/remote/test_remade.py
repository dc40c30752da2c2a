"""What a worker makes of what came from another host."""

import pytest
import torch

from headrace.core.errors import RemoteError
from headrace.engine.worker.randomness import seeding
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.remote.elsewhere import sample_entry
from headrace.remote.messages import EntryKind
from headrace.remote.ray_driver import by_value
from headrace.remote.remade import Remade
from tests.remote.datasets import Noisy


@pytest.fixture
def arena():
    made = Arena(1 << 20)
    yield made
    made.close()


def put(arena, content, kind=EntryKind.VALUE):
    arena.write(64, content)
    return wire.NOWHERE._replace(label_kind=wire.NUMBER_LABEL, label=int(kind), offset=64, size=len(content))


def entry(sample):
    return bytes(sample_entry.packed(sample_entry.codec(), sample))


def made(index, seed=1):
    seeding.seed_sample(seed, 0, index)
    return Noisy(10)[index]


def taken(remade, index, place):
    remade.place = place
    seeding.seed_sample(1, 0, index)
    return remade(index)


def test_a_sample_is_what_it_was_made_as(arena):
    remade = Remade(Noisy(10), arena)
    for index in (3, 4):
        sample = taken(remade, index, put(arena, entry(made(index))))
        assert torch.equal(sample[0], made(index)[0])
        assert sample[1:] == made(index)[1:]
        arena.write(64, bytes(64))  # its place is used again
        assert torch.equal(sample[0], made(index)[0])


def test_the_first_one_that_differs_is_an_error_that_says_so(arena):
    other = put(arena, entry(made(3, seed=2)))
    with pytest.raises(RemoteError, match="sample 3 made on another host is not the one"):
        taken(Remade(Noisy(10), arena), 3, other)
    assert torch.equal(taken(Remade(Noisy(10), arena, compares=False), 3, other)[0], made(3, seed=2)[0])


def test_what_failed_there_is_made_here(arena):
    sample = taken(Remade(Noisy(10), arena), 5, put(arena, b"ValueError: no disk", EntryKind.FAILED))
    assert torch.equal(sample[0], made(5)[0])


def test_what_cannot_be_carried_is_named(arena):
    words = b"is a tests.Odd, which cannot be kept"
    with pytest.raises(RemoteError, match=r"sample 6 cannot be carried.*tests\.Odd"):
        taken(Remade(Noisy(10), arena), 6, put(arena, words, EntryKind.UNFIT))


def test_a_pickle_is_taken_only_where_the_user_says_so(arena):
    pickled = put(arena, by_value(made(6)), EntryKind.PICKLED)
    assert torch.equal(taken(Remade(Noisy(10), arena, pickled=True), 6, pickled)[0], made(6)[0])
    with pytest.raises(RemoteError, match="makes no sense"):
        taken(Remade(Noisy(10), arena), 6, pickled)


def test_bytes_that_mean_nothing_are_an_error(arena):
    with pytest.raises(RemoteError, match="sample 6 from another host makes no sense"):
        taken(Remade(Noisy(10), arena), 6, put(arena, b"\x10\0\0\0" + bytes(100)))


def test_what_nobody_brought_is_made_here(arena):
    assert torch.equal(taken(Remade(Noisy(10), arena), 5, None)[0], made(5)[0])
