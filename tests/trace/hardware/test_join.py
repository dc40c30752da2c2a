"""Every sample goes to the operation its thread was in."""

import os
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.trace.hardware.join import BEFORE, OTHER_THREADS, OUTSIDE, containing, join
from headrace.trace.hardware.records import SAMPLES
from tests.trace.hardware.support import traced


@st.composite
def nested(draw):
    """Spans that are disjoint or nested, in any order, and times."""
    spans: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6)))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            if end > start:
                spans.append((start, end - start))
                if depth:
                    fill(start, end, depth - 1)

    fill(0, 60, 2)
    unique = sorted(set(spans), key=lambda _: draw(st.integers(0, 100)))
    return unique, draw(st.lists(st.integers(-2, 62), max_size=20))


@given(nested())
def test_the_innermost_span_is_found(case):
    spans, times = case
    starts, lengths = (np.array([span[at] for span in spans], np.int64) for at in (0, 1))
    found = containing(starts, lengths, np.array(times, np.int64))
    for time, at in zip(times, found.tolist(), strict=True):
        around = [(length, -start) for start, length in spans if start <= time < start + length]
        if around:
            assert (lengths[at], -starts[at]) == min(around)
        else:
            assert at == -1


def test_operations_what_is_around_them_and_other_threads_are_told_apart(tmp_path):
    trace = traced(tmp_path / "a.trace", [("read", 100, 50), ("resize", 200, 50)])
    here, me = os.getpid(), threading.get_native_id()
    cases = [
        (here, me, -1, BEFORE),
        (here, me, 99, OUTSIDE),
        (here, me, 100, "read"),
        (here, me, 149, "read"),
        (here, me, 150, "(rest of sample)"),
        (here, me, 220, "resize"),
        (here, me, 250, OUTSIDE),
        (here, me + 1, 120, OTHER_THREADS),
        (here + 1, me, 120, OTHER_THREADS),
    ]
    samples = np.zeros(len(cases), SAMPLES)
    for at, (process, thread, time, _) in enumerate(cases):
        samples[at]["process"], samples[at]["thread"], samples[at]["time"] = process, thread, trace.base + time
    names, place = join(trace, samples)
    assert [names[at] for at in place] == [expected for *_, expected in cases]
