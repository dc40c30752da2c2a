"""Entries: what comes back is what was kept, and what was tampered with is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.codec import Codec, Corrupt, NotKept, check

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=200),
)
samples = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(samples)
def test_what_is_kept_comes_back(value):
    entry = Codec().encode(value).bytes()
    found = Codec().decode(entry)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.zeros((3, 0, 2), np.int16),
        np.array(7.5),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(10)[::-2],
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array(["2024-01-01"], "M8[D]"),
        np.arange(3, dtype=">i4"),
    ],
)
def test_arrays(array):
    found = Codec().decode(Codec().encode((array, 5)).bytes())[0]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.array_equal(found, array)
    assert not found.flags.writeable


def test_scalars_keep_their_type():
    found = Codec().decode(Codec().encode([np.float32(1.5), np.int64(3)]).bytes())
    assert [type(each) for each in found] == [np.float32, np.int64]


def test_arrays_are_views_of_the_entry():
    entry = Codec().encode({"image": np.arange(1000, dtype=np.uint8), "label": 3}).bytes()
    found = Codec().decode(entry)["image"]
    assert np.shares_memory(found, np.frombuffer(entry, np.uint8))
    assert (found.ctypes.data - np.frombuffer(entry, np.uint8).ctypes.data) % 64 == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), r"sample is a builtins.object, which cannot be kept"),
        ((1, {"a": [{1, 2}]}), r"sample\[1\]\['a'\]\[0\] is a builtins.set"),
        ({1: 2}, r"sample is a builtins.dict"),
        (np.array([object()]), r"numpy.ndarray"),
        (np.ma.masked_array([1], [True]), r"MaskedArray"),
        (lambda: 0, r"builtins.function"),
    ],
)
def test_other_types_are_refused_by_name(value, said):
    with pytest.raises(NotKept, match=said):
        Codec().encode(value)


@given(st.data())
def test_any_changed_byte_is_noticed(data):
    entry = Codec().encode((np.arange(50), "label", 3)).bytes()
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        Codec().decode(entry)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_entry_are_refused(garbage):
    with pytest.raises(Corrupt):
        Codec().decode(garbage)


@given(st.integers(0, 600))
def test_a_part_of_an_entry_is_refused(length):
    entry = Codec().encode(np.arange(100)).bytes()
    if length >= len(entry):
        return
    with pytest.raises(Corrupt):
        Codec().decode(entry[:length])


def test_an_entry_in_a_larger_chunk_is_read():
    entry = Codec().encode([1, b"abc"]).bytes()
    assert Codec().decode(bytes(entry) + bytes(100)) == [1, b"abc"]
    assert check(memoryview(bytes(entry) + bytes(7)))[0] == len(entry)
