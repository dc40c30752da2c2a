"""Entries: what comes back is what was kept, and what was tampered with is noticed."""

import contextlib
import enum
import itertools
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.entries.codec import Codec, Corrupt, NotKept
from tests.cache.sealed import sealed, unsealed

scalars = st.sampled_from(
    [
        *(np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2024-01-01", "D"), np.timedelta64(5, "s")),
        *(np.str_("a\0"), np.bytes_(b"b\0"), np.complex64(1j), np.longdouble(0.1), np.float16(0)),
    ]
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.binary(max_size=200),
)
keys = st.one_of(hashable, st.tuples(hashable, hashable), st.frozensets(hashable, max_size=3))
plain = st.one_of(
    hashable,
    scalars,
    st.binary(max_size=50).map(bytearray),
    st.sets(hashable, max_size=4),
    st.frozensets(hashable, max_size=4),
    st.lists(st.integers(-(1 << 70), 1 << 70) | st.integers(0, 9), min_size=14, max_size=20),
    st.lists(st.floats(allow_nan=False), min_size=14, max_size=20).map(tuple),
)
samples = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


def alike(found, value):
    """Equal, and of the same types throughout."""
    if type(found) is not type(value):
        return False
    if isinstance(value, (list, tuple)):
        return len(found) == len(value) and all(map(alike, found, value))
    if isinstance(value, dict):
        return alike(list(found.items()), list(value.items()))
    if isinstance(value, (set, frozenset)):
        return found == value and {(type(each), repr(each)) for each in found} == {
            (type(each), repr(each)) for each in value
        }
    if isinstance(value, np.ndarray):
        return (
            (found.dtype, found.shape, found.strides) == (value.dtype, value.shape, value.strides)
            and found.flags.writeable == value.flags.writeable
            and np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(value).tobytes()
        )
    return repr(found) == repr(value) and (not isinstance(value, np.generic) or found.dtype == value.dtype)


def through(value):
    return unsealed(sealed(value))


@given(samples)
def test_what_is_kept_comes_back(value):
    assert alike(through(value), value)


RECORD = np.dtype([("at", "<f4", (2,)), ("name", "S3"), ("inner", [("x", ">i2")])])
BLOCK = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
READ_ONLY = np.frombuffer(b"12345678", np.int32)
ARRAYS = [
    BLOCK,
    np.zeros((3, 0, 2), np.int16),
    np.zeros((3, 0, 2), np.int16).transpose(2, 0, 1),
    np.array(7.5),
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    BLOCK.transpose(1, 2, 0),
    BLOCK[:, ::-1],
    BLOCK[:, :2, 1:3],
    BLOCK[:1],
    BLOCK[:, :1],
    np.arange(10)[::-2],
    np.broadcast_to(np.arange(3), (2, 3)),
    np.lib.stride_tricks.sliding_window_view(np.arange(9), 3),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.array(["2024-01-01"], "M8[D]"),
    np.array([3], "m8[ms]"),
    np.array(["abc", ""]),
    np.array([b"abc", b"d"]),
    np.zeros(3, "<U0"),
    np.arange(3, dtype=">i4"),
    np.zeros(2, RECORD),
    READ_ONLY,
]


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays(array):
    found = through((array, 5))[0]
    assert alike(found, array)


def test_arrays_of_a_read_only_entry_are_read_only():
    entry = sealed((BLOCK, BLOCK.transpose(1, 2, 0).copy("K")))
    entry.flags.writeable = False
    found = unsealed(entry)
    assert [each.flags.writeable for each in found] == [False, False]


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(["u1", "<f4", ">i2", "?", "S3", "<U2"]),
    st.data(),
)
def test_any_view_of_an_array(shape, dtype, data):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    steps = data.draw(
        st.tuples(*(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2)]),) * len(shape))
    )
    order = data.draw(st.permutations(range(len(shape))))
    value = array[steps].transpose(order)
    assert alike(through([value])[0], value)


def test_what_is_one_object_stays_one():
    picture, boxes = np.arange(6), [1, 2]
    found = through((picture, picture, {"boxes": boxes, "same": boxes}))
    assert found[0] is found[1]
    assert found[2]["boxes"] is found[2]["same"]
    loop = [1]
    loop.append(loop)
    around = through(loop)
    assert around[1] is around


def test_values_of_one_memory_are_refused():
    picture = np.arange(60).reshape(6, 10)
    with pytest.raises(NotKept, match="share memory"):
        Codec().describe((picture, picture[2:4]))
    assert alike(through((picture[:, :4], picture[:, 4:])), (picture[:, :4], picture[:, 4:]))


def test_samples_alike_have_one_layout():
    codec = Codec()
    layouts = {
        codec.describe(({"image": np.zeros(shape, np.uint8), "name": name}, label)).layout
        for shape, name, label in [((3, 4, 5), "a", 1), ((3, 9, 2), "longer", -7), ((1, 7, 7), "", 1 << 40)]
    }
    assert len(layouts) == 1
    assert len(layouts.pop()) < 64


def test_a_body_is_rebuilt_by_its_layout():
    codec = Codec()
    described = codec.describe((np.arange(5), "text", 3))
    body = bytearray(b"\xff" * described.size)
    described.write(memoryview(body), but_last=False)
    assert alike(codec.rebuild(described.layout, memoryview(body)), (np.arange(5), "text", 3))
    places = [(place, place + len(content)) for place, content in described.buffers]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))


@given(st.binary(max_size=60), st.binary(max_size=300))
def test_a_layout_that_means_nothing_is_corrupt(layout, body):
    with contextlib.suppress(Corrupt):
        Codec().rebuild(layout, memoryview(bytearray(body)))


@given(st.data())
def test_numbers_that_mean_nothing_are_corrupt(data):
    """Whatever a body says of shapes and strides, nothing outside of it is touched."""
    value = data.draw(st.sampled_from([BLOCK, BLOCK[:, :2, 1:3], BLOCK.transpose(1, 2, 0), ["text", 1 << 80]]))
    described = Codec().describe(value)
    body = bytearray(described.size)
    described.write(memoryview(body), but_last=False)
    at = data.draw(st.integers(0, len(body) // 8 - 1))
    body[8 * at : 8 * at + 8] = struct.pack("<q", data.draw(st.integers(-(1 << 63), (1 << 63) - 1)))
    with contextlib.suppress(Corrupt):
        str(Codec().rebuild(described.layout, memoryview(body)))


def test_arrays_are_views_of_the_entry():
    entry = sealed({"image": np.arange(1000, dtype=np.uint8), "label": 3})
    found = unsealed(entry)["image"]
    assert np.shares_memory(found, entry)
    assert (found.ctypes.data - entry.ctypes.data) % 64 == 0


Pair = namedtuple("Pair", "one other")  # noqa: PYI024


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), r"sample is a builtins.object, which cannot be kept"),
        ((1, {"a": [[1, slice(2)]]}), r"sample\[1\]\['a'\]\[0\]\[1\] is a builtins.slice"),
        ({range(3): 2}, r"sample key range\(0, 3\) is a builtins.range"),
        (np.array([object()]), r"numpy.ndarray of dtype\('O'\)"),
        (np.zeros(2, np.dtype("i4", metadata={"a": 1})), r"numpy.ndarray of dtype"),
        (Pair(1, 2), r"Pair, which cannot be kept .* no subclasses"),
        (defaultdict(list), "collections.defaultdict"),
        (Counter("ab"), "collections.Counter"),
        (Colour.RED, "Colour"),
        (memoryview(b"abc"), "memoryview"),
        (type("Text", (str,), {})("a"), "Text"),
        (np.ma.masked_array([1], [True]), r"MaskedArray"),
        (lambda: 0, r"builtins.function"),
    ],
)
def test_other_types_are_refused_by_name(value, said):
    with pytest.raises(NotKept, match=said):
        Codec().describe(value)
