"""Traces with known content, written as a loader writes them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.trace import format as F
from headrace.trace.reader import Trace, read
from headrace.trace.trace_file import record
from headrace.trace.trace_stream import TraceStream

MS = 1_000_000


class Made:
    """A trace in the making; times are milliseconds since it began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        recording = record(path)
        self.base, self._room = recording.base, recording._extents.take
        self._streams: dict[int, TraceStream] = {}
        self._runs = 0
        self.run_number = 0

    def at(self, ms: float) -> int:
        return self.base + round(ms * MS)

    def stream(self, lane: int) -> TraceStream:
        """A worker's stream; -1 is the trainer's."""
        if lane not in self._streams:
            stream = TraceStream(self._room, self.base)
            stream.describe(F.STREAM_TEXT, {"role": "main" if lane < 0 else "worker", "lane": lane})
            self._streams[lane] = stream
        stream = self._streams[lane]
        if self.run_number:
            stream.run(self.run_number, self.base)
        return stream

    def run(self, loader: str = "train", epoch: int = 0, **facts: Any) -> None:
        """Whatever follows is of a new run."""
        self._runs += 1
        self.run_number = self._runs
        stream = self.stream(-1)
        stream.describe(F.RUN_TEXT, {"run": self.run_number, "loader": loader, "epoch": epoch, **facts})

    def sample(
        self,
        lane: int,
        start: float,
        length: float,
        index: Any = 0,
        *,
        batch: int | None = None,
        row: int = 0,
        operations: Mapping[str, float] | Sequence[tuple[str, float]] = (),
        cpu: float = -1,
        operation_cpu: float = -1,
        flags: int = 0,
        sizes: tuple[int, int] = (0, 0),
    ) -> None:
        """One sample with its operations one after the other from its start, then a write of no length.

        ``operation_cpu``: share of their time that operations compute.
        """
        stream = self.stream(lane)
        marks: list[int] = []
        at = start
        for name, took in dict(operations).items():
            marks += (
                F.span(round(took * MS), round(operation_cpu * took * MS)),
                stream.operations([name])[0] + self.at(at),
            )
            at += took
        stream.sample(
            index,
            self.at(start),
            round(length * MS),
            round(cpu * MS) if cpu >= 0 else -1,
            sizes[0] << 32 | sizes[1],
            flags,
            marks,
        )
        if batch is not None:
            stream.rows(batch, row, 1, self.at(start + length), 0)

    def batch(self, batch: int, asked: float, got: float, samples: int = 1, ready: int = 0) -> None:
        self.stream(-1).batch(batch, samples, ready, 0, self.at(asked), round((got - asked) * MS))

    def read(self) -> Trace:
        self._streams.clear()
        self._room = None
        return read(self.path)


def input_bound(path: Path, batches: int = 20, epochs: int = 1, **facts: Any) -> Made:
    """Two workers make a batch of two samples every 10 ms (20 ms of work each); the trainer needs 2 ms for it."""
    made = Made(path)
    clock = 0.0
    for epoch in range(epochs):
        made.run("train", epoch, **{"workers": 2, "batch_size": 2, "in_order": True, "prefetch": 2} | facts)
        asked = clock
        for number in range(batches):
            for lane in (0, 1):
                cost = {"decode": 6.0, "flip": 0.05, "crop": 3.0}
                index = 2 * number + lane
                made.sample(
                    lane, clock, 10, index, batch=number, row=lane, operations=cost, cpu=9.5, sizes=(1000, 5000)
                )
            clock += 10
            made.batch(number, asked, clock, samples=2)
            asked = clock + 2
    return made


def trainer_bound(path: Path, batches: int = 20, **facts: Any) -> Made:
    """One worker makes a batch of one sample in 1 ms; the trainer takes 10 ms for it."""
    made = Made(path)
    made.run("train", 0, **{"workers": 4, "batch_size": 1, "in_order": True} | facts)
    for number in range(batches):
        made.sample(0, number, 1, number, batch=number, cpu=1)
        made.batch(number, 1 + 10 * number if number else 0, 1 + 10 * number + 0.1, ready=min(number, 3))
    return made


def now_ms(made: Made) -> float:
    return (time.monotonic_ns() - made.base) / MS
