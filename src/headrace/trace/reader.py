"""A trace in memory: tables of numpy columns, whatever state the file is in."""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.errors import TraceError
from headrace.trace import format as F
from headrace.trace.decode import SCHEMAS, Decoder

Table = npt.NDArray[Any]


@dataclass(frozen=True)
class StreamInfo:
    """A thread that recorded."""

    process: int
    thread: int
    role: str
    """"worker" or "main"."""
    lane: int
    """A worker's number, else -1."""


@dataclass(frozen=True)
class RunInfo:
    """An epoch of a loader. ``facts`` has what the loader said of itself: workers, batch_size, in_order, ..."""

    loader: str
    epoch: int
    process: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """The whole content of a trace file. Times are int64 nanoseconds since ``base``; tables are structured arrays.

    ``samples`` and the others have the fields that ``headrace.trace.decode.SCHEMAS`` lists, with these conventions:
    ``stream``, ``run`` and ``name`` are positions in the lists of that name (-1: unknown), ``cpu`` and ``batch`` are -1
    where they are unknown, a batch is known by (run, batch), an operation's ``sample`` is a position in ``samples``.
    """

    path: str
    base: int
    """CLOCK_MONOTONIC when the trace began, in nanoseconds."""
    wall: int
    """The wall clock at that moment, nanoseconds since 1970."""
    host: str
    complete: bool
    """False when the disk was full at some point."""
    size: int
    """Bytes the file takes on disk."""
    events: int
    """Samples, operations, writes, collations, deliveries, copies, spans, counter values and events in it."""
    streams: tuple[StreamInfo, ...]
    runs: tuple[RunInfo, ...]
    names: tuple[str, ...]
    """Of operations, spans, counters and events; keys of samples that were slow, or whose index is no integer."""
    samples: Table
    operations: Table
    rows: Table
    collations: Table
    batches: Table
    copies: Table
    spans: Table
    counters: Table
    marks: Table
    """Events: worker deaths, hand-offs, repeats."""

    def number(self, name: str) -> int:
        """The number that tables have for a name; -1 for an unknown name."""
        return self.names.index(name) if name in self.names else -1

    def records(self, table: str) -> Iterator[NamedTuple]:
        """The rows of a table ("samples", ...) as named tuples, with names instead of their numbers."""
        columns: Table = getattr(self, table)
        fields = columns.dtype.names or ()
        called = {"batches": "Batch", "copies": "Copy"}.get(table, table.capitalize().rstrip("s"))
        record = NamedTuple(called, [(field, Any) for field in fields])  # type: ignore[misc]
        named = fields.index("name") if "name" in fields else -1
        for row in columns.tolist():
            values = list(row)
            if named >= 0:
                values[named] = self.names[values[named]]
            yield record(*values)

    def arrow(self, table: str) -> Any:
        """A table as a ``pyarrow.Table``; needs pyarrow."""
        import pyarrow as pa  # noqa: PLC0415  (an extra)

        columns: Table = getattr(self, table)
        arrays = {field: pa.array(np.ascontiguousarray(columns[field])) for field in columns.dtype.names or ()}
        if "name" in arrays:
            names = pa.array(list(self.names))
            arrays["name"] = pa.DictionaryArray.from_arrays(pa.array(columns["name"].astype(np.int32)), names)
        return pa.table(arrays)


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace at that path, as far as it is written. Raises ``TraceError`` when it is none."""
    where = Path(path)
    try:
        with where.open("rb") as file:
            raw = file.read()
            blocks = os.fstat(file.fileno()).st_blocks * 512
    except OSError as error:
        raise TraceError(f"{where}: cannot be read ({error.strerror})") from error
    if not raw.startswith(F.MAGIC):
        raise TraceError(f"{where}: this is not a headrace trace" if raw else f"{where}: the file is empty")
    if len(raw) < F.HEADER.size:
        raise TraceError(f"{where}: the trace is cut off within its header")
    _, version, extent, base, wall, _, state, host = F.HEADER.unpack_from(raw)
    if version != F.VERSION:
        raise TraceError(f"{where}: a trace of format {version}; this release of headrace reads format {F.VERSION}")
    decoder = Decoder()
    try:
        for parts in _streams(raw, extent).values():
            decoder.stream(parts)
        tables, begun = decoder.tables(), [position for position, (facts, _) in enumerate(decoder.runs) if facts]
        _renumber(tables, begun, len(decoder.runs))
        runs = tuple(_run(*decoder.runs[position]) for position in begun)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise TraceError(
            f"{where}: the trace is damaged; what is in it makes no sense ({type(error).__name__}: {error})"
        ) from error
    calls = tables["operations"]
    tables["operations"] = calls[calls["sample"] >= 0]  # in a damaged file some may belong to none
    return Trace(
        path=str(where),
        base=base,
        wall=wall,
        host=host.rstrip(b"\0").decode(errors="replace"),
        complete=state != F.DISK_FULL,
        size=min(len(raw), blocks) or len(raw),
        events=sum(len(table) for table in tables.values()),
        streams=tuple(StreamInfo(*known) for known in decoder.streams),
        runs=runs,
        names=tuple(decoder.names),
        **tables,
    )


def _renumber(tables: dict[str, Table], known: list[int], count: int) -> None:
    """Epochs that were never begun (workers were ahead, and the program ended) are no runs."""
    numbers = np.full(count + 1, -1)
    numbers[known] = np.arange(len(known))
    for table in tables.values():
        table["run"] = numbers[table["run"]]


def _run(facts: str, process: int) -> RunInfo:
    known = json.loads(facts) if facts else {}
    return RunInfo(str(known.pop("loader", "?")), int(known.pop("epoch", 0)), process, known)


def _streams(raw: bytes, extent: int) -> "dict[int, list[tuple[int, int, npt.NDArray[np.uint64]]]]":
    """(process, thread, units) of each extent, by stream, in order; as far as each is written."""
    found: dict[int, list[tuple[int, int, int, npt.NDArray[np.uint64]]]] = {}
    for at in range(extent, len(raw) - F.UNITS_OFFSET + 1, extent):
        magic, number, process, thread, stream, _ = F.EXTENT_HEAD.unpack_from(raw, at)
        if magic != F.EXTENT_MAGIC:
            continue  # taken, but its owner ended before it wrote anything
        end = min(at + extent, len(raw))
        count = (end - at - F.UNITS_OFFSET) // F.UNIT
        units = np.frombuffer(raw, "<u8", 2 * count, at + F.UNITS_OFFSET).reshape(-1, 2)
        ends = np.flatnonzero(units[:, 1] == 0)
        units = units[: ends[0]] if len(ends) else units
        found.setdefault(stream, []).append((number, process, thread, units))
    return {
        stream: [(process, thread, units) for _, process, thread, units in sorted(parts, key=lambda part: part[0])]
        for stream, parts in found.items()
    }


__all__ = ["SCHEMAS", "RunInfo", "StreamInfo", "Table", "Trace", "read"]
