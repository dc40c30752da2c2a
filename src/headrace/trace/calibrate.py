"""Cost of recording on this machine: the writer, timed into a temporary file for a few milliseconds."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.trace.probe import Probe
from headrace.trace.reader import Trace
from headrace.trace.trace_file import record
from headrace.trace.trace_stream import TraceStream

REPEATS, ROUNDS = 500, 5


@dataclass(frozen=True)
class Calibration:
    """Nanoseconds each, the reading of clocks included."""

    sample: float
    cpu: float
    """For the CPU time of a sample or operation."""
    operation: float
    other: float

    def cost(self, trace: Trace) -> float:
        """Seconds that recording this trace took, in all processes together."""
        samples, calls = len(trace.samples), len(trace.operations)
        others = trace.events - samples - calls
        with_cpu = int((trace.samples["cpu"] >= 0).sum() + (trace.operations["cpu"] >= 0).sum())
        return (samples * self.sample + with_cpu * self.cpu + calls * self.operation + others * self.other) / 1e9


def calibrate() -> Calibration:
    """Time the writer; takes some ten milliseconds."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        stream = record(Path(folder) / "calibration").stream()  # a real file: pages of it are written to as in a trace
        probe = Probe()
        operation = probe.timed(lambda: None, 1, stream.operations(["one"])[0])
        bare = _time(lambda: _sample(stream, probe, operation, 0))
        laden = _time(lambda: _sample(stream, probe, operation, 8))
        return Calibration(
            sample=bare,
            cpu=_time(lambda: (time.thread_time_ns(), time.thread_time_ns())),
            operation=max(0.0, laden - bare) / 8,
            other=_time(lambda: _batch(stream)),
        )


def _sample(stream: TraceStream, probe: Probe, operation: Callable[[], object], operations: int) -> None:
    probe.begin()
    start = time.monotonic_ns()
    for _ in range(operations):
        operation()
    stream.sample(1, start, time.monotonic_ns() - start, -1, 0, 0, probe.marks)


def _batch(stream: TraceStream) -> None:
    start = time.monotonic_ns()
    stream.batch(1, 1, 0, 0, start, time.monotonic_ns() - start)


def _time(once: Callable[[], object]) -> float:
    """Nanoseconds of CPU that it takes, in the fastest of a few rounds."""
    rounds = []
    for _ in range(ROUNDS):
        before = time.thread_time_ns()
        for _ in range(REPEATS):
            once()
        rounds.append((time.thread_time_ns() - before) / REPEATS)
    return min(rounds)
