"""A stream's spans as a timeline shows them: nested, none across the end of another. Pure."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headrace.trace import format as F
from headrace.trace.analysis.batches import delivered, making
from headrace.trace.analysis.operation_times import COLLATE, WRITE, label
from headrace.trace.reader import Table, Trace


class Slice(NamedTuple):
    """A span of one stream. Times are nanoseconds since the trace's base."""

    start: int
    end: int
    name: str
    kind: str
    """"batch" (a worker's part in it), "sample", "operation", "loader", "wait", "copy" or "span" (the user's own)."""
    detail: dict[str, Any]


class Flow(NamedTuple):
    """A batch's way from the moment it was ready to the moment the trainer had it."""

    number: int
    batch: int
    run: int
    ready: int
    maker: int
    got: int
    trainer: int


class Value(NamedTuple):
    """A counter of a process takes a value."""

    time: int
    stream: int
    name: str
    value: float


def slices(trace: Trace, stream: int, *, coarse: bool = False) -> Iterator[Slice]:
    """A stream's slices, each before those within it."""
    found = [*_consumed(trace, stream), *_parts(trace, stream)]
    if not coarse:
        found += _made(trace, stream)
    found.sort(key=lambda one: (one.kind, *_order(one)))  # neighbours are those of one kind
    _part_neighbours(found)
    found.sort(key=_order)
    ends: list[int] = []
    for one in found:
        while ends and ends[-1] <= one.start:
            ends.pop()
        if ends and one.end > ends[-1]:
            one = one._replace(end=ends[-1])  # noqa: PLW2901  (it is the same one, cut off)
        ends.append(one.end)
        yield one


def _order(one: Slice) -> tuple[int, bool, int]:
    """Sort key: the longer of two that begin together holds the other; an empty span holds nothing."""
    return one.start, one.end > one.start, -one.end


def _part_neighbours(found: list[Slice]) -> None:
    """Let one end where the next of its kind begins: rounded times may overlap a little."""
    for i, (one, after) in enumerate(itertools.pairwise(found)):
        if one.kind == after.kind and after.start < one.end < after.end:
            found[i] = one._replace(end=after.start)


def flows(trace: Trace) -> Iterator[Flow]:
    """A flow for every batch whose making was recorded."""
    batches = delivered(trace)
    batches = batches[batches["made"]]
    fields = ["batch", "run", "ready", "maker", "got", "stream"]
    for number, values in enumerate(batches[fields].tolist(), 1):
        yield Flow(number, *values)


def values(trace: Trace) -> Iterator[Value]:
    """Every counter, and those that follow from the records: batches that lay ready, hits by form."""
    known = {trace.names[number] for number in np.unique(trace.counters["name"]).tolist()}
    for time, stream, _, name, value in trace.counters.tolist():
        yield Value(time, stream, trace.names[name], value)
    for name in ("ready", "outstanding"):
        if name not in known:
            for row in trace.batches[["start", "elapsed", "stream", name]].tolist():
                yield Value(row[0] + row[1], row[2], name, row[3])
    main = next((number for number, stream in enumerate(trace.streams) if stream.role == "main"), 0)
    for tier, form in enumerate(F.FORMS, 1):
        mine = trace.samples[trace.samples["tier"] == tier]
        for count, time in enumerate(np.sort(mine["start"] + mine["elapsed"]).tolist(), 1):
            yield Value(time, main, f"hits ({form})", count)


def title(trace: Trace, stream: int) -> str:
    """A stream's title."""
    info = trace.streams[stream]
    return f"worker {info.lane}" if info.role == "worker" else "trainer"


def _mine(table: Table, stream: int, *fields: str) -> Iterator[tuple[Any, ...]]:
    """Start, end and these fields of a stream's spans."""
    for start, length, *values in table[table["stream"] == stream][["start", "elapsed", *fields]].tolist():
        yield start, start + length, *values


def _consumed(trace: Trace, stream: int) -> Iterator[Slice]:
    """Slices that the trainer and the user's program recorded."""
    fields = ("batch", "samples", "ready", "run")
    for start, end, batch, samples, ready, run in _mine(trace.batches, stream, *fields):
        detail = {"batch": batch, "samples": samples, "ready": ready, **_run(trace, run)}
        yield Slice(start, end, f"wait for batch {batch}", "wait", detail)
    for start, end, batch, size in _mine(trace.copies, stream, "batch", "bytes"):
        yield Slice(start, end, f"copy batch {batch}", "copy", {"batch": batch, "bytes": size})
    for start, end, name in _mine(trace.spans, stream, "name"):
        yield Slice(start, end, trace.names[name], "span", {})


def _run(trace: Trace, run: int) -> dict[str, Any]:
    return {"loader": trace.runs[run].loader, "epoch": trace.runs[run].epoch} if run >= 0 else {}


def _parts(trace: Trace, stream: int) -> Iterator[Slice]:
    """A worker's part in a batch: as long as what it does is for the same one."""
    every = making(trace)
    every = every[every["stream"] == stream]
    if not len(every):
        return
    every = every[np.lexsort((every["end"], every["start"]))]
    other = (np.diff(every["batch"]) != 0) | (np.diff(every["run"]) != 0)
    for group in np.split(every, np.flatnonzero(other) + 1):
        batch, count = int(group["batch"][0]), int(group["samples"].sum())
        detail = {"batch": batch, "samples": count, **_run(trace, int(group["run"][0]))}
        yield Slice(int(group["start"].min()), int(group["end"].max()), f"batch {batch}", "batch", detail)


def _made(trace: Trace, stream: int) -> Iterator[Slice]:
    """Samples, operations, writes and collations."""
    for row in trace.samples[trace.samples["stream"] == stream]:
        start, length = int(row["start"]), int(row["elapsed"])
        detail = {"index": label(trace, row), "batch": int(row["batch"])}
        if row["bytes_in"] or row["bytes_out"]:
            detail |= {"bytes in": int(row["bytes_in"]), "bytes out": int(row["bytes_out"])}
        detail |= {name: True for name in ("slow", "failed", "repeated") if row[name]}
        if row["cpu"] >= 0:
            detail["cpu"] = round(float(row["cpu"] / length), 3) if length else 0.0
        yield Slice(start, start + length, f"sample {detail['index']}", "sample", detail)
    for start, end, name in _mine(trace.operations, stream, "name"):
        yield Slice(start, end, trace.names[name], "operation", {})
    for what, table in ((WRITE, trace.rows), (COLLATE, trace.collations)):
        for start, end, batch in _mine(table, stream, "batch"):
            yield Slice(start, end, what, "loader", {"batch": batch})
