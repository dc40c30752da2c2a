"""Intervals of shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trace.hardware.profile import share


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_share_lies_in_its_interval(part, rest):
    found = share(part, part + rest)
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(st.integers(0, 100), st.integers(0, 100))
def test_more_samples_say_more(part, rest):
    few, many = share(part, part + rest), share(10 * part, 10 * (part + rest))
    assert many.high - many.low <= few.high - few.low


def test_known_values():
    half = share(5, 10)  # Wilson's interval, from any table
    assert (half.low, half.high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    everything = share(10, 10)
    assert (everything.low, everything.high) == (pytest.approx(0.7225, abs=1e-4), 1.0)
