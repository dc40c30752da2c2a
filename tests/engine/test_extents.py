"""Pieces of the arena never overlap while they are in use, and space comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.fetcher.extents import ALIGN, Extents, size_class


@given(st.integers(0, 1 << 40))
def test_what_is_set_aside_is_enough_and_little_more(size):
    found = size_class(size)
    assert found >= max(size, 1)
    assert found % ALIGN == 0
    assert found <= max(2 * ALIGN, size * 5 // 4 + ALIGN)


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
    assert extents.allocate(30_000) is not None


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
    extents = Extents(10 * size_class(1000))
    straggler = extents.allocate(1000)
    for _ in range(100):
        offset = extents.allocate(1000)
        assert offset is not None
        extents.free(offset)
    extents.free(straggler)


@pytest.mark.parametrize("size", [0, 1, ALIGN])
def test_small_pieces_take_one_unit(size):
    assert size_class(size) == ALIGN
