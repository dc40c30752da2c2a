"""Entries name themselves, and are whole or none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.backends import entry_word as W
from headrace.cache.entries import entry as E
from headrace.cache.entries.codec import Codec
from tests.cache.sealed import KEY, sealed, unsealed

VALUES = ["small", np.arange(50), np.arange(40_000), np.arange(30_011, dtype=np.uint8), (np.arange(9000), b"x", 3)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(type(value)))
def test_what_was_sealed_comes_back(value):
    found = unsealed(np.concatenate([sealed(value), np.zeros(100, np.uint8)]))
    assert repr(found) == repr(value)


def test_a_large_piece_is_written_from_where_it_lies():
    value = np.arange(30_000)
    described = Codec().describe((1, value))
    _, rest = E.seal(KEY, 7, described, np.empty(E.length(described), np.uint8))
    assert np.shares_memory(np.frombuffer(rest, np.uint8), value)


def test_what_changes_before_it_is_written_is_no_entry():
    value = np.arange(30_000)
    described = Codec().describe(value)
    pieces = E.seal(KEY, 7, described, np.empty(E.length(described), np.uint8))
    value[17] = 0
    assert E.unseal(KEY, np.frombuffer(b"".join(pieces), np.uint8)) is None


@given(st.data())
def test_any_change_is_noticed(data):
    entry = sealed(data.draw(st.sampled_from(VALUES)))
    whole = entry.copy()
    at = data.draw(st.integers(0, len(entry) - 1))
    how = data.draw(st.sampled_from(["byte", "cut", "cleared", "swapped"]))
    if how == "byte":
        entry[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        entry = entry[:at]
    elif how == "cleared":
        entry[at : at + data.draw(st.integers(1, 5000))] = 0
    else:
        other, size = data.draw(st.integers(0, len(entry) - 1)), data.draw(st.integers(1, 5000))
        size = min(size, len(entry) - max(at, other))
        entry[at : at + size], entry[other : other + size] = whole[other : other + size], whole[at : at + size]
    assert np.array_equal(entry, whole) or E.unseal(KEY, entry) is None


@given(st.binary(max_size=300))
def test_other_bytes_are_no_entry(garbage):
    assert E.unseal(KEY, np.frombuffer(garbage, np.uint8)) is None


@pytest.mark.parametrize(
    "other",
    [KEY._replace(sample=4), KEY._replace(scope=b"x" * 16), KEY._replace(word=KEY.word + (1 << 27))],
    ids=["sample", "data", "generation"],
)
def test_an_entry_of_something_else_is_none(other):
    assert E.unseal(other, sealed(np.arange(10_000))) is None


def test_words():
    made = {W.word(W.DECODED, 5000) for _ in range(1000)}
    assert len(made) == 1000
    assert {(W.form_of(word), W.on_disk(word), W.size_of(word)) for word in made} == {(W.DECODED, False, 5120)}
    some = np.array([0, *list(made)[:3], W.word(W.ENCODED, 512, disk=True)], np.uint64)
    assert W.sums(some) == (0, 3 * 5120, 0, 512)
    assert W.forms(some).tolist() == [0, 2, 2, 2, 1]
