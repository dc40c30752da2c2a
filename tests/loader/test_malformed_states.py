"""States that were damaged, edited and sealed again: an error of one line, or the right data."""

import json
import random

import pytest

import headrace
from headrace.engine.ordering import saved
from tests.loader.test_mismatch import KINDS, made, real
from tests.malformed import bounded, check_line, damaged, edited
from tests.parity.support import lists

INLINE = [kind for kind in KINDS if kind != "with workers"]

# Four hundred in every run, and ten thousand others in a long one.
few = pytest.mark.parametrize("seeds", [range(400)], ids=["few"])
many = pytest.mark.parametrize("seeds", [range(n, n + 500) for n in range(400, 10_400, 500)], ids=str)


def check_one(seed: int) -> bool:
    """Whether it was believed."""
    rng = random.Random(seed)
    kind, batches = rng.choice(INLINE), rng.randrange(5)
    text, rest = real(kind, batches)
    original = json.loads(text)
    sealed = rng.random() < 0.7
    try:
        # What is inside the state of the user's dataset is the dataset's to judge.
        state = edited(rng, json.loads(text), but="state") if sealed else json.loads(damaged(rng, text.encode()))
        state = saved.sealed(state) if sealed and isinstance(state, dict) else state
    except (ValueError, RecursionError):  # no JSON, or nothing that could be sealed
        return False
    loader = made(kind)
    try:
        loader.load_state_dict(state)
    except headrace.StateMismatch as error:
        check_line(error)
        assert loader.state_dict() == {}
        return False
    assert sealed or state in ({}, original), "a damaged state was believed"
    try:
        found = lists(loader)
    except headrace.StateMismatch as error:
        check_line(error)
        return False
    if state == original:
        assert sorted(map(sorted, found)) == rest
    return True


def check(seeds: range) -> None:
    with bounded():
        assert sum(map(check_one, seeds)) < len(seeds) // 2


@few
def test_malformed(seeds):
    check(seeds)


@many
@pytest.mark.soak
def test_many_malformed(seeds):
    check(seeds)


def test_what_would_take_all_memory():
    """Indices that are sizes, and a set that is unpacked into as many samples as it says itself."""
    for odd in ({"numpy": ["V8", 1 << 33]}, {"numpy": ["S", 1 << 33]}, {"numpy": ["O", {"a": 1}]}):
        state = json.loads(real("sequential", 2)[0])
        state["pending"] = [[odd]]
        with bounded(), pytest.raises(headrace.StateMismatch, match="is not an index of a sample"):
            made("sequential").load_state_dict(saved.sealed(state))
    state = json.loads(real("sequential", 2)[0])
    state["loader"]["length"] = 1 << 39
    state["exchanged"] = saved.bitmap(saved.np.full(1 << 23, 255, saved.np.uint8))
    with bounded(), pytest.raises(headrace.StateMismatch, match="length"):
        made("sequential").load_state_dict(saved.sealed(state))


def test_what_is_nested_without_end():
    state = json.loads(real("sequential", 2)[0])
    inner: list[object] = []
    for _ in range(100_000):
        inner = [inner]
    state["order"]["sampler"] = inner
    with pytest.raises(headrace.StateMismatch, match="nested too deeply"):
        made("sequential").load_state_dict(state)
    while inner:  # or freeing it is as deep
        inner = inner.pop()
