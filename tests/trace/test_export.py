"""Timelines for other people's viewers: what stands in the files."""

import io
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trace import chrome
from headrace.trace import format as F
from headrace.trace.analysis.slices import slices
from tests.trace.made import MS, Made, input_bound


@pytest.fixture
def trace(tmp_path):
    made = input_bound(tmp_path / "run.trace", batches=4, epochs=2)
    made.stream(-1).span("forward", made.at(10.5), 1 * MS)
    made.stream(-1).counter("lanes", 2, made.at(1))
    made.stream(-1).event("death", 1, made.at(7))
    made.sample(0, 200.0001234, 0.000567, 9, batch=9, flags=1 << F.TIER_SHIFT)
    return made.read()


def exported(trace, **options):
    file = io.StringIO()
    count = chrome.write(trace, file, **options)
    found = json.loads(file.getvalue())
    assert len(found["traceEvents"]) == count
    return found["traceEvents"]


class TestChrome:
    def test_spans_of_workers_and_consumer(self, trace):
        spans = [event for event in exported(trace) if event["ph"] == "X"]
        kinds = defaultdict(int)
        for event in spans:
            kinds[event["cat"]] += 1
        assert kinds["headrace wait"] == 8
        assert kinds["headrace sample"] == 17
        assert kinds["headrace operation"] == 48
        assert kinds["headrace span"] == 1
        (wait,) = [e for e in spans if e["name"] == "wait for batch 2" and e["args"]["epoch"] == 1]
        assert (wait["ts"], wait["dur"]) == (62_000, 8_000)
        assert wait["args"]["loader"] == "train"

    def test_nanoseconds_are_kept(self, trace):
        (event,) = [event for event in exported(trace) if event["name"] == "sample 9"]
        assert (event["ts"], event["dur"]) == (200_000.123, 0.567)

    def test_coarse_has_batches_only(self, trace):
        coarse = [event for event in exported(trace, coarse=True) if event["ph"] == "X"]
        assert {event["cat"] for event in coarse} == {"headrace wait", "headrace batch", "headrace span"}
        (part,) = [
            e for e in coarse if e["name"] == "batch 1" and e["args"]["epoch"] == 0 and "worker" not in e["name"]
        ][:1]
        assert (part["ts"], part["dur"]) == (10_000, 10_000)

    def test_arrows_lead_from_ready_to_got(self, trace):
        events = exported(trace)
        begins = {event["id"]: event for event in events if event["ph"] == "s"}
        ends = {event["id"]: event for event in events if event["ph"] == "f"}
        assert len(begins) == len(ends) == 8
        first = begins[1]
        assert first["ts"] == pytest.approx(10_000, abs=0.01)  # where batch 0 was ready, not where it was begun
        for number, begin in begins.items():
            end = ends[number]
            assert end["ts"] >= begin["ts"]
            for event in (begin, end):
                assert [span for span in events if span["ph"] == "X" and _covers(span, event)], "bound to no slice"

    def test_every_run_has_its_own_arrows(self, trace):
        """Batches are numbered anew in every epoch; arrows are not."""
        events = [event for event in exported(trace) if event["ph"] == "s"]
        assert len({event["id"] for event in events}) == len(events)
        assert sorted((event["args"]["run"], event["args"]["batch"]) for event in events) == [
            (run, batch) for run in (0, 1) for batch in range(4)
        ]

    def test_counters_and_marks(self, trace):
        events = exported(trace)
        counters = {event["name"] for event in events if event["ph"] == "C"}
        assert counters == {"lanes", "ready", "outstanding", "hits (encoded)"}
        assert [event["args"] for event in events if event["name"] == "lanes"] == [{"lanes": 2}]
        assert [event["ts"] for event in events if event["name"] == "death"] == [7_000]

    def test_threads_have_names(self, trace):
        names = {event["args"]["name"] for event in exported(trace) if event["name"] == "thread_name"}
        assert names == {"headrace trainer", "headrace worker 0", "headrace worker 1"}


def _covers(span, event):
    inside = span["ts"] <= event["ts"] < span["ts"] + span["dur"]
    return inside and (span["pid"], span["tid"]) == (event["pid"], event["tid"])


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12)


@given(spans, spans)
def test_slices_nest_whatever_was_recorded(tmp_path_factory, samples, own):
    made = Made(tmp_path_factory.mktemp("t") / "t")
    made.run()
    for number, (start, length) in enumerate(samples):
        made.sample(0, start, length, number, batch=number, operations={"a": length / 2, "b": length})
    for start, length in own:
        made.stream(0).span("mine", made.at(start), length * MS)
    trace = made.read()
    ends: list[int] = []
    for one in slices(trace, [stream.lane for stream in trace.streams].index(0)) if samples or own else ():
        while ends and ends[-1] <= one.start:
            ends.pop()
        assert one.start <= one.end
        assert not ends or one.end <= ends[-1]
        ends.append(one.end)
