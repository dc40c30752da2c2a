"""The number of an index: of its contents only, the same in every process and run."""

import datetime as dt
import enum
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.worker.randomness.index_numbers import number
from tests.parity.support import ROOT


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 3


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Key:
    name: str
    tags: frozenset[str]


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def anew(text):
    """An equal string that is another object."""
    return text[:1] + text[1:]


def keys():
    """Indices of many kinds, made anew: nothing is shared between two calls."""
    text = anew("image")
    return {
        "string": text,
        "bytes": b"\x00raw",
        "tuple": (text, 3, text),
        "nested": [(text, [1, 2.5, None]), {"b": 1, "a": {text, "z", "y"}}],
        "uuid": uuid.UUID(int=77),
        "enum": Colour.GREEN,
        "date": dt.date(2026, 2, 3),
        "moment": np.datetime64("2026-02-03T04:05"),
        "path": PurePosixPath("a/b"),
        "fraction": Fraction(1, 3),
        "slice": slice(1, None, 2),
        "range": range(2, 9),
        "named": Pair(text, 1),
        "dataclass": Key(text, frozenset({"p", "q", "r", "s"})),
        "slotted": Slotted(text),
        "array": np.array([[1, 2], [3, 4]]),
        "tensor": torch.tensor([5, 6]),
        "complex": 1 + 2j,
        "half": 0.5,
        "surrogate": "\ud800",
        "huge": 1 << 100,
    }


@pytest.mark.parametrize(
    "same",
    [
        *(torch.tensor(7, dtype=dtype) for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32)),
        *(dtype(7) for dtype in (np.int64, np.int8, np.uint64, np.float32)),
        np.array(7),
        torch.arange(10)[7],
        np.arange(10)[7],
        7.0,
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_a_number_is_the_same_whatever_its_type(same):
    assert number(same) == number(7) == 7


def test_truth_and_named_numbers():
    assert number(torch.tensor(True)) == number(np.bool_(True)) == number(True) == 1
    assert number(Level.LOW) == 3


def test_a_tensor_an_array_and_a_list_of_the_same_numbers():
    assert number(torch.tensor([1, 2])) == number(np.array([1, 2])) == number([1, 2]) == number((1, 2))


def test_kinds_are_told_apart():
    found = {name: number(key) for name, key in keys().items()}
    found |= {
        "digits": number("7"),
        "raw text": number(b"image"),
        "red": number(Colour.RED),
        "split": number(("im", "age")),
        "flat": number((1, (2, 3))),
        "deep": number(((1, 2), 3)),
        "empty": number(()),
        "none": number(None),
        "other slot": number(Slotted("other")),
    }
    assert len(set(found.values())) == len(found)


def test_an_index_that_contains_itself():
    endless: list[Any] = ["a"]
    endless.append(endless)
    assert number(endless) == number(endless)


def test_contents_count_and_not_which_objects_are_shared():
    text = "a text"
    assert number((text, text)) == number((anew(text), anew(text)))
    whole = torch.arange(100)
    assert number(whole[3:5]) == number(torch.tensor([3, 4]))


@given(st.recursive(st.integers() | st.text() | st.binary() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_equal_indices_have_equal_numbers(index):
    assert number(index) == number(json.loads(json.dumps(index)) if _is_json(index) else index)
    assert isinstance(number(index), int)


def _is_json(index):
    return not isinstance(index, bytes) and (not isinstance(index, list) or all(map(_is_json, index)))


def test_every_run_has_the_same_numbers():
    script = (
        "import json\nfrom tests.engine.test_identity import keys\n"
        "from headrace.engine.worker.randomness.index_numbers import number\n"
        "print(json.dumps({name: number(key) for name, key in keys().items()}))"
    )
    runs = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=240, check=True)
        runs.append(json.loads(done.stdout))
    assert runs[0] == runs[1] == {name: number(key) for name, key in keys().items()}
    assert runs[0]["string"] == 3862512033318259137, "seeds must not change from version to version"
