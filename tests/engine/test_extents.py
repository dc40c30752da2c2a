"""Pieces of the arena never overlap while they are in use, and space comes back."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fetching.extents import ALIGN, Extents, rounded


@given(st.integers(0, 1 << 40))
def test_what_is_set_aside_is_enough_and_little_more(size):
    assert max(size, 1) <= rounded(size) < size + ALIGN + (size == 0)
    assert rounded(size) % ALIGN == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=200))
def test_pieces_in_use_do_not_overlap(steps):
    extents = Extents(40_000)
    used: dict[int, int] = {}
    for allocate, number in steps:
        if allocate:
            offset = extents.allocate(number)
            if offset is None:
                assert used
                continue
            assert offset + number <= 40_000
            for other, size in used.items():
                assert offset + number <= other or other + size <= offset
            used[offset] = max(1, number)
        elif used:
            offset = sorted(used)[number % len(used)]
            del used[offset]
            extents.free(offset)
    for offset in list(used):
        extents.free(offset)
    assert extents.used == 0
    assert extents.allocate(39_936) == 0, "all of it is one piece again"


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_pieces_that_are_allocated_together_are_freed_one_by_one(sizes, order):
    extents = Extents(1 << 20)
    before = extents.allocate(100)
    offsets = extents.allocate_each(sizes)
    places = sorted(zip(offsets, sizes, strict=True))
    assert before + 100 <= places[0][0]
    assert all(offset + size <= following for (offset, size), (following, _) in itertools.pairwise(places))
    assert extents.used == rounded(100) + sum(map(rounded, sizes))
    left = extents.used
    for offset, size in order.sample(places, len(places)):
        extents.free(offset)
        left -= rounded(size)
        assert extents.used == left
    extents.free(before)
    assert extents.allocate((1 << 20) - ALIGN) == 0, "all of it is one piece again"


def test_pieces_that_do_not_fit_together_are_not_allocated():
    extents = Extents(1 << 12)
    assert extents.allocate_each([3000, 2000]) is None
    assert extents.used == 0


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=8))
def test_a_new_owner_leaves_what_is_in_use_alone(sizes):
    before = Extents(1 << 20)
    live = [(before.allocate(size), size) for size in sizes]
    after = Extents(1 << 20, live)
    offset = after.allocate(100)
    assert all(offset + 100 <= other or other + size <= offset for other, size in live)
    for other, _ in live:
        after.free(other)
    after.free(offset)
    assert after.used == 0


def test_freeing_twice_gives_nothing_twice():
    extents = Extents(1 << 20)
    kept, twice = extents.allocate(100), extents.allocate(100)
    extents.free(twice)
    extents.free(twice)
    assert len({kept, extents.allocate(100), extents.allocate(100)}) == 3


def test_a_straggler_does_not_keep_the_space_behind_it():
    extents = Extents(10 * rounded(1000))
    straggler = extents.allocate(1000)
    for _ in range(100):
        offset = extents.allocate(1000)
        assert offset is not None
        extents.free(offset)
    extents.free(straggler)


@pytest.mark.parametrize("size", [0, 1, ALIGN])
def test_small_pieces_take_one_unit(size):
    assert rounded(size) == ALIGN


@pytest.mark.parametrize("growth", [1, 3, 40])
@pytest.mark.parametrize("seed", range(4))
def test_sizes_that_rise_find_what_smaller_ones_left(growth, seed):
    """Half of the space in use at most, and one in ten stays long: whatever fits the other half has a place."""
    draw = random.Random(seed)
    bound, size, used, extents = 1 << 20, 64, [], Extents(2 << 20)
    while size < bound // 8:
        while used and extents.used + size > bound:
            extents.free(used.pop(0 if draw.random() < 0.9 else draw.randrange(len(used))))
        offset = extents.allocate(size)
        assert offset is not None, (size, extents.used)
        used.append(offset)
        size += draw.randrange(1, 64 * growth)


def test_what_was_written_to_and_is_free_is_said_once():
    extents = Extents(1 << 20)
    kept, freed, behind = (extents.allocate(10_000) for _ in range(3))
    assert extents.touched == 0
    extents.free(freed)
    assert extents.touched == rounded(10_000)
    assert extents.surplus() == [(freed, rounded(10_000))]
    assert extents.surplus() == []
    extents.free(behind)
    ((offset, size),) = extents.surplus()
    assert (offset, offset + size) == (freed, 1 << 20), "with all that is beside it"
    assert extents.used == rounded(10_000)
    extents.free(kept)
