"""Counters by operation and function, from records as a machine with counters writes them."""

import ctypes
import json
import os
import threading

import pytest

from headrace.trace.hardware import records as R
from headrace.trace.hardware.profile import data, profile, ratios
from tests.trace.hardware.support import mmap2, sample, traced
from tests.trace.hardware.test_elf import place

IDS = {"1": "cpu-clock", "2": "cycles", "3": "instructions", "4": "cache-misses"}


@pytest.fixture
def found(tmp_path):
    """Two operations, two functions: read spends its time in one, resize in both."""
    trace = traced(tmp_path / "a.trace", [("read", 0, 1000), ("resize", 1000, 1000)])
    path, first = place(ctypes.pythonapi.PyDict_GetItem)
    _, second = place(ctypes.pythonapi.PyLong_AsLong)
    here = {"pid": os.getpid(), "tid": threading.get_native_id()}
    raw = R.note(json.dumps({"events": IDS, "kernel": True, "frequency": 100}).encode())
    raw += mmap2(os.getpid(), 1, 0, 1 << 40, 0, path)
    for at in range(30):
        raw += sample(2, first, trace.base + 10 * at, 100, **here)
        raw += sample(1, first, trace.base + 10 * at, 50, **here)
    for at in range(10):
        raw += sample(2, first if at < 2 else second, trace.base + 1000 + 10 * at, 100, **here)
        raw += sample(1, second, trace.base + 1000 + 10 * at, 50, **here)
    raw += sample(3, first, trace.base + 5, 3000, **here) + sample(3, second, trace.base + 1005, 3000, **here)
    raw += sample(4, second, trace.base + 1005, 5, **here)
    # Cycles were lost (4,000 of 8,000 sampled); instructions took turns with others half of the time.
    totals = {
        "cpu-clock": [2000, 9, 2000],
        "cycles": [8000, 9, 2000],
        "instructions": [6000, 9, 1000],
        "cache-misses": [5, 9, 2000],
    }
    raw += R.note(json.dumps({"totals": totals}).encode())
    return {operation.name: operation for operation in profile(trace, R.parse(raw)).operations}


def test_functions_are_counted_in_their_operation(found):
    read, resize = found["read"], found["resize"]
    assert [(entry.function.name, entry.samples) for entry in read.entries] == [("PyDict_GetItem", 30)]
    assert [(entry.function.name, entry.samples) for entry in resize.entries] == [
        ("PyLong_AsLong", 8),
        ("PyDict_GetItem", 2),
    ]
    assert resize.entries[0].share.value == pytest.approx(0.8)
    assert resize.entries[1].belongs.value == pytest.approx(2 / 32)
    assert read.parts["python"] == 1.0
    assert (read.calls, read.elapsed) == (1, pytest.approx(1e-6))


def test_counts_add_up_to_the_exact_totals(found):
    read, resize = found["read"], found["resize"]
    assert read.seconds + resize.seconds == pytest.approx(2000e-9)
    assert (read.counters["cycles"], resize.counters["cycles"]) == (pytest.approx(6000), pytest.approx(2000))
    assert read.counters["instructions"] == pytest.approx(6000)  # half of 6,000, counted for half of the time
    assert (read.counters["cache-misses"], resize.counters["cache-misses"]) == (0, pytest.approx(5))


def test_ratios_follow_from_the_counts(found):
    assert ratios(found["resize"].counters)["IPC"] == pytest.approx(3.0)
    assert ratios(found["resize"].counters)["cache MPKI"] == pytest.approx(5 / 6)
    stalled = {"cycles": 10.0, "stalled-cycles-frontend": 2.0, "stalled-cycles-backend": 5.0}
    assert ratios(stalled) == {"front-end bound": 0.2, "back-end bound": 0.5}
    assert ratios({"cycles": 0.0, "instructions": 5.0}) == {}


def test_a_profile_is_plain_data(tmp_path):
    trace = traced(tmp_path / "a.trace", [("read", 0, 1000)])
    raw = R.note(json.dumps({"events": IDS}).encode()) + sample(2, 1, trace.base + 5)
    plain = json.loads(json.dumps(data(profile(trace, R.parse(raw)))))
    assert plain["primary"] == "cycles"
    assert plain["operations"][0]["functions"][0]["part"] == "unknown"


def test_no_samples_make_an_empty_profile(tmp_path):
    trace = traced(tmp_path / "a.trace", [("read", 0, 1000)])
    assert profile(trace, R.parse(R.note(b"{}"))).operations == []
