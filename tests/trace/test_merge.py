"""A trace and one of torch.profiler on one timeline."""

import gzip
import json
import os
import threading
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from headrace.core.errors import TraceError
from headrace.trace import chrome
from tests.trace.made import Made, now_ms

TOLERANCE_US = 500
"""Two clocks are read one after the other, and torch converts its own."""


@pytest.fixture
def both(tmp_path):
    """Ten steps that both record: torch as "step N", we as a span around it and as the wait for batch N after it."""
    made = Made(tmp_path / "run.trace")
    made.run("train", workers=1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(10):
            begin = now_ms(made)
            with record_function(f"step {number}"):
                end = time.perf_counter() + 0.002
                while time.perf_counter() < end:
                    torch.ones(10).sum()
            after = now_ms(made)
            made.stream(-1).span(f"around {number}", made.at(begin), round((after - begin) * 1e6))
            made.sample(0, begin, after - begin, number, batch=number)
            made.batch(number, after, now_ms(made))
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    return made.read(), tmp_path / "torch.json"


def merged(trace, torch_trace, tmp_path):
    with (tmp_path / "merged.json").open("w") as file:
        count = chrome.write(trace, file, torch=torch_trace)
    found = json.loads((tmp_path / "merged.json").read_text())
    assert len(found["traceEvents"]) == count
    return found


def assert_aligned(found):
    by_name = {event["name"]: event for event in found["traceEvents"] if event.get("ph") == "X"}
    for number in range(10):
        inner, outer = by_name[f"step {number}"], by_name[f"around {number}"]
        assert outer["ts"] - TOLERANCE_US <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + TOLERANCE_US


def test_spans_of_both_fall_together(both, tmp_path):
    trace, path = both
    torch_trace = chrome.read_torch(str(path))
    assert torch_trace["baseTimeNanoseconds"] > 0
    found = merged(trace, torch_trace, tmp_path)
    assert_aligned(found)
    assert found["baseTimeNanoseconds"] == torch_trace["baseTimeNanoseconds"]


def test_older_traces_count_from_1970(both, tmp_path):
    trace, path = both
    torch_trace = chrome.read_torch(str(path))
    base = torch_trace.pop("baseTimeNanoseconds")
    for event in torch_trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += base / 1000
    assert_aligned(merged(trace, torch_trace, tmp_path))


def test_torch_s_events_stay_as_they_are(both, tmp_path):
    trace, path = both
    theirs = json.loads(path.read_text())["traceEvents"]
    found = merged(trace, chrome.read_torch(str(path)), tmp_path)["traceEvents"]
    assert found[-len(theirs) :] == theirs
    named = {event["pid"]: event for event in theirs if event["name"] == "process_name"}
    ours = [event for event in found[: -len(theirs)] if event["name"] == "process_name"]
    assert not [event for event in ours if event["pid"] in named]


def test_threads_that_torch_shows_are_shown_beside(both, tmp_path):
    trace, path = both
    found = merged(trace, chrome.read_torch(str(path)), tmp_path)["traceEvents"]
    here = (os.getpid(), threading.get_native_id())
    assert here in {(event.get("pid"), event.get("tid")) for event in found}
    waits = [event for event in found if event["name"].startswith("wait for batch")]
    assert len(waits) == 10
    assert {event["pid"] for event in waits} == {here[0]}
    assert {event["tid"] for event in waits} == {here[1] + chrome.BESIDE}


def test_a_gzipped_trace_is_read(both):
    _, path = both
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert chrome.read_torch(str(packed)) == chrome.read_torch(str(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"traceEvents": [{"ph"', "no complete JSON"),
        (b"\x1f\x8bbroken", "no complete JSON"),
        (b'{"schemaVersion": 1}', "no traceEvents"),
        (b"17", "no traceEvents"),
        (None, "cannot be read"),
    ],
)
def test_anything_else_is_refused(tmp_path, content, says):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as caught:
        chrome.read_torch(str(path))
    assert str(path) in str(caught.value)


def test_a_list_of_events_is_a_trace_too(tmp_path):
    path = tmp_path / "list.json"
    path.write_text('[{"ph": "M", "name": "process_name", "pid": 1}]')
    made = Made(tmp_path / "run.trace")
    made.run()
    made.batch(0, 0, 1)
    found = merged(made.read(), chrome.read_torch(str(path)), tmp_path)
    (wait,) = [event for event in found["traceEvents"] if event["name"] == "wait for batch 0"]
    assert wait["ts"] > 1e15
