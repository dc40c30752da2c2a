"""Samples that were made, into rows: those of one layout together, the others as objects."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.engine.memory import pickled
from headrace.engine.memory.layout import Layout
from headrace.engine.worker import failure
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import SampleRecords
from headrace.sched.lanes.lane_messages import RowSpan
from headrace.sched.lanes.lanemachine import LaneMachine, WriteRows

Run = tuple[int, Sequence[Any]]
"""Samples of consecutive positions, and the first of these."""


class Placer:
    """The samples that one worker has made and not handed over yet."""

    def __init__(
        self, machine: LaneMachine, memory: WorkerMemory, stream: SampleRecords | None, where: str, *, standard: bool
    ) -> None:
        """``standard``: samples with a layout go into rows. ``where``: says which worker could not send one."""
        self._machine, self._memory, self._stream, self._where = machine, memory, stream, where
        self._standard = standard
        self.size = 0
        """Bytes of the sample last written."""
        self._runs: deque[Run] = deque()
        self._layout: tuple[int, Layout] | None = None
        self._columns: list[Sequence[Any]] | None = None  # what is to be written: the first samples, leaf by leaf
        self._encoded: pickled.EncodedObject | None = None  # or the first one as an object
        self._odd = 0  # so many of the first samples have a layout and do not fit it

    def take(self, runs: Iterable[Run]) -> None:
        """Take runs that were made, in the order of their positions. Whatever was there is of an epoch that was
        given up.
        """
        self._runs, self._columns, self._encoded, self._odd = deque(runs), None, None, 0

    def place(self) -> None:
        """Say how the next samples look."""
        start, samples = self._runs[0]
        columns, count = None, len(samples)
        if self._layout is not None and not self._odd:
            columns = self._layout[1].columns(samples)
        if columns is None and self._standard and not self._odd:
            count, columns = self._alike(samples)
        if columns is None:
            self._place_object(start, samples[0])
            return
        assert self._layout is not None
        number, layout = self._layout
        self._columns = columns
        self._machine.place(start, count, number, lambda rows: layout.plan(rows)[1])

    def _alike(self, samples: Sequence[Any]) -> tuple[int, list[Sequence[Any]] | None]:
        """The number of samples at the beginning that share the first one's layout, and their columns."""
        known = self._memory.layouts.of(samples[0])
        if known is None:
            return 1, None
        self._layout, layout = known, known[1]
        count = 1
        while count < len(samples) and layout.columns(samples[count : count + 1]) is not None:
            count += 1
        return count, layout.columns(samples[:count])

    def _place_object(self, position: int, sample: Any) -> None:
        try:
            self._encoded = pickled.EncodedObject(sample)
        except HeadraceError as error:  # it cannot be sent
            self._refuse(position, error)
        else:
            self._machine.place(position, 1)

    def _refuse(self, position: int, error: BaseException) -> None:
        self._drop(1)
        packed = failure.pack(error, self._where)
        self._machine.refuse(position, self._memory.filing(self._machine.tickets.group, packed))

    def write(self, command: WriteRows) -> None:
        """Put the next samples into the rows there are for them."""
        rows, columns = command.rows, self._columns
        if columns is None:
            self._write_object(rows)
            return
        rest = None
        try:
            if rows.count < len(columns[0]):
                # There are rows for some of them only: the others stay sorted by leaf for the rows that come next.
                columns, rest = [c[: rows.count] for c in columns], [c[rows.count :] for c in columns]
            objects, elapsed = self._write_rows(rows, columns)
        except Exception:  # noqa: BLE001  (a number too large for its column, say: torch will say what is wrong)
            self._odd, self._columns = len(columns[0]) + (0 if rest is None else len(rest[0])), None
            self._machine.unwritten()
            return
        self._columns = rest
        self._drop(rows.count)
        self._machine.wrote(objects, elapsed)

    def _write_rows(self, rows: RowSpan, columns: list[Sequence[Any]]) -> tuple[list[int] | None, int]:
        """Samples of the current layout; where they stand if the slot has another, and what it took."""
        assert self._layout is not None
        number, layout = self._layout
        began, objects = time.monotonic_ns(), None
        if rows.layout == number:
            self._memory.write_rows(rows, layout, columns)
            self.size = layout.row_bytes
        else:
            values = [layout.sample(leaves) for leaves in zip(*columns, strict=True)]
            objects = [self._memory.write_object(rows.slot, pickled.EncodedObject(value)) for value in values]
        return objects, self._record(rows, began)

    def _write_object(self, rows: RowSpan) -> None:
        """A sample without a layout."""
        assert self._encoded is not None
        encoded, self._encoded = self._encoded, None
        began, self.size = time.monotonic_ns(), encoded.size
        try:
            offset = self._memory.write_object(rows.slot, encoded)
        except HeadraceError as error:  # it does not fit
            self._machine.unwritten()
            self._refuse(self._runs[0][0], error)
            return
        elapsed = self._record(rows, began)
        self._drop(1)
        self._machine.wrote([offset], elapsed)

    def _record(self, rows: RowSpan, began: int) -> int:
        """Samples were written to rows, in how long; they are in the trace before anybody can see them."""
        elapsed = time.monotonic_ns() - began
        if self._stream is not None:
            self._stream.rows(self._memory.facts.number(rows.slot), rows.first, rows.count, began, elapsed)
        return elapsed

    def _drop(self, count: int) -> None:
        """The first samples are nobody's here any more."""
        start, samples = self._runs[0]
        self._odd = max(0, self._odd - count)
        if count == len(samples):
            self._runs.popleft()
        else:
            self._runs[0] = start + count, samples[count:]
