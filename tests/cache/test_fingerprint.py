"""Fingerprints: alike for the same, different for whatever changed."""

import enum
import functools
import pickle
import re
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from headrace.cache.fingerprints.fingerprint import fingerprint
from headrace.core.errors import CacheError


class Mode(enum.Enum):
    NEAREST = 0
    CUBIC = 3


class Scale:
    def __init__(self, factor, mode=Mode.CUBIC):
        self.factor, self.mode = factor, mode

    def __call__(self, value):
        return value * self.factor


def double(value, by=2):
    return value * by


def closure(by):
    return lambda value: value * by


class Measured(np.ndarray):
    pass


def measured(unit):
    found = np.arange(4).view(Measured)
    found.unit = unit
    return found


DIFFERENT = [
    None,
    0,
    False,
    0.0,
    "0",
    b"0",
    (),
    [],
    {},
    set(),
    (1, 2),
    ((1,), 2),
    [1, 2],
    {"a": 1},
    {"a": 2},
    {1, 2},
    Mode.CUBIC,
    Mode.NEAREST,
    np.arange(3),
    np.arange(3.0),
    np.arange(4).reshape(2, 2),
    np.arange(4),
    measured("mm"),
    measured("cm"),
    np.ma.array([1, 2], mask=[0, 1], fill_value=8),
    np.ma.array([1, 2], mask=[0, 1], fill_value=9),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},  # who goes through it meets them in this order
    {f"{number:04}": 1 for number in range(2000)},
    {f"{number:04}": 1 for number in reversed(range(2000))},
    re.compile("a+"),
    re.compile("a+", re.IGNORECASE),
    Scale(2),
    Scale(3),
    Scale(2, Mode.NEAREST),
    Scale,
    double,
    closure(1),
    closure(2),
    functools.partial(double, by=3),
    functools.partial(double, by=4),
    len,
    Scale(2).__call__,
]


def test_all_of_these_differ():
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(DIFFERENT)
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in found)
    assert found == [fingerprint(value) for value in DIFFERENT]


def compiled(shift):
    """Objects of compiled classes, and tensors that are more than an array."""
    return {
        "frame": pd.DataFrame({"a": [1, 2 + shift], "b": ["x", "y"]}),
        "timestamp": pd.Timestamp(2020 + shift, 1, 1),
        "categorical": pd.Categorical(["a", "ab"[shift]], categories=["a", "b"]),
        "generator": np.random.default_rng(shift),
        "table": pa.table({"a": [1, 2 + shift]}),
        "schema": pa.schema([("a" + shift * "b", pa.int32())]),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.full((3,), 1.0 * shift)]),
        "conjugate": torch.tensor([1 + 1j, shift]).conj(),
        "negative": torch.tensor([1 + 1j * shift]).conj().imag,
    }


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
def test_compiled_classes_and_odd_tensors_are_told_by_what_they_hold():
    first, again, other = (
        {name: fingerprint({"held": value}) for name, value in compiled(shift).items()} for shift in (0, 0, 1)
    )
    assert first == again
    assert not [name for name in first if first[name] == other[name]]


def test_equal_things_are_alike():
    assert fingerprint(Scale(2)) == fingerprint(Scale(2))
    assert fingerprint(closure(5)) == fingerprint(closure(5))


def test_the_same_in_another_process():
    program = "from tests.cache.test_fingerprint import *; print(fingerprint(DIFFERENT[:-1], {'x', 'y', 'z'}))"
    shown = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout}
    assert shown == {fingerprint(DIFFERENT[:-1], {"x", "y", "z"}) + "\n"}


def test_a_loop_ends():
    one = Scale(1)
    one.factor = one
    assert fingerprint(one) != fingerprint(Scale(1))


def test_what_cannot_be_told_apart_is_refused_by_name():
    with pytest.raises(CacheError, match=r"value\.factor is a _thread.lock, .* `cache_fingerprint\(\)`"):
        fingerprint(Scale(threading.Lock()))


def test_an_object_may_say_it_itself():
    class Told(Scale):
        def cache_fingerprint(self):
            return "third version"

    assert fingerprint(Told(threading.Lock())) == fingerprint(Told(1))


class Pickled:
    def __init__(self):
        self.size = 3


def test_pickling_changes_nothing():
    before = fingerprint(Pickled())
    pickle.dumps(Pickled())
    assert "__slotnames__" in vars(Pickled)
    assert fingerprint(Pickled()) == before
