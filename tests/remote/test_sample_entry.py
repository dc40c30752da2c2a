"""A sample in one piece, as it travels."""

from pickle import PickleBuffer

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.entries.codec import Corrupt, NotKept
from headrace.ondevice.pixels.bundle import HOLE, Picture
from headrace.remote.elsewhere import sample_entry
from tests.remote.datasets import Odd

VALUES = [(torch.arange(5), 3, "text", [1.5, None]), {"array": np.ones((2, 3), np.float16)}, b"", 7]


def sent(value):
    """What arrives, and from where."""
    layout, node, body = sample_entry.split(sample_entry.packed(sample_entry.codec(), value, b"10.0.0.7"))
    return sample_entry.codec().rebuild(layout, body), node


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(value):
    found, node = sent(value)
    assert node == b"10.0.0.7"
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_a_picture_for_a_device_comes_back_with_its_hole():
    given = Picture(3, PickleBuffer(b"jpeg"), 0, b"numbers", np.ones((2, 2), np.uint8), torch.ones(1, 4), (HOLE, 5))
    found, _ = sent(given)
    assert type(found) is Picture
    assert bytes(found.data) == b"jpeg"
    assert found[2:4] == given[2:4]
    assert found.index == 3
    assert np.array_equal(found.mask, given.mask)
    assert torch.equal(found.boxes, given.boxes)
    assert found.rest == (HOLE, 5)
    assert found.rest[0] is HOLE


def test_what_no_entry_can_hold_is_named():
    with pytest.raises(NotKept, match="Odd"):
        sample_entry.packed(sample_entry.codec(), (1, Odd()))


@given(st.binary(max_size=70))
def test_what_is_no_entry_is_refused(noise):
    try:
        layout, node, body = sample_entry.split(bytearray(noise))
    except ValueError:
        return
    assert len(layout) + len(node) + len(body) <= len(noise)


def test_an_entry_cut_short_is_refused():
    whole = sample_entry.packed(sample_entry.codec(), torch.arange(100))
    layout, _, body = sample_entry.split(whole[:-8])
    with pytest.raises(Corrupt):
        sample_entry.codec().rebuild(layout, body)
