"""A report as one page that needs nothing but a browser: plots and a timeline, drawn by the script within it."""

import importlib.resources
import json
from typing import Any

import numpy as np

from headrace.trace.analysis.batches import delivered
from headrace.trace.analysis.select import loaders, of_runs, within
from headrace.trace.analysis.slices import flows, slices, title
from headrace.trace.analysis.spread import SECOND
from headrace.trace.decode import SCHEMAS
from headrace.trace.reader import Table, Trace
from headrace.trace.report import Report

MOST_SLICES = 50_000
"""A browser draws this many at once without a pause."""
MOST_POINTS = 4_000


def page(trace: Trace, report: Report, begin: float = 0.0) -> str:
    """The page. ``begin``: seconds into the trace where the timeline starts."""
    data = {
        "report": report.data(),
        "batches": [_points(delivered(of_runs(trace, loader.runs))) for loader in loaders(trace)],
        "timeline": timeline(trace, begin),
    }
    template = importlib.resources.files("headrace.trace").joinpath("page.html").read_text(encoding="utf-8")
    # A text in the data must not end the script it stands in.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("/*DATA*/null", text)


def timeline(trace: Trace, begin: float = 0.0) -> dict[str, Any]:
    """Slices of every stream as columns, from ``begin`` on and as many as can be shown."""
    spans = [getattr(trace, name) for name, fields in SCHEMAS.items() if ("start", "i8") in fields]
    starts = np.sort(np.concatenate([table["start"] for table in spans]))
    zero = int(starts[0]) if len(starts) else 0
    last = 1 + max((int((table["start"] + table["elapsed"]).max()) for table in spans if len(table)), default=0)
    first = zero + int(begin * SECOND)
    starts = starts[starts >= first]
    end = int(starts[MOST_SLICES]) if len(starts) > MOST_SLICES else last
    shown = within(trace, first, end)
    names: dict[str, int] = {}
    tracks: list[dict[str, Any]] = []
    of_stream: dict[int, int] = {}
    for stream in sorted(range(len(trace.streams)), key=lambda stream: (trace.streams[stream].lane, stream)):
        found = _columns(shown, stream, first, names)
        if found["start"]:
            of_stream[stream] = _place(tracks, title(trace, stream), trace.streams[stream].process, found)
    arrows = [
        [of_stream[flow.maker], flow.ready - first, of_stream[flow.trainer], flow.got - first]
        for flow in flows(shown)
        if flow.ready >= first
    ]
    return {
        "tracks": tracks,
        "names": list(names),
        "arrows": arrows,
        "begin": (first - zero) / SECOND,
        "length": max(0, end - first),
        "whole": max(0, last - zero),
    }


def _columns(trace: Trace, stream: int, first: int, names: dict[str, int]) -> dict[str, list[Any]]:
    """A stream's slices, each with the number of those it lies in."""
    columns: dict[str, list[Any]] = {name: [] for name in ("start", "length", "name", "kind", "depth")}
    ends: list[int] = []
    for one in slices(trace, stream):
        while ends and ends[-1] <= one.start:
            ends.pop()
        values = (one.start - first, one.end - one.start, names.setdefault(one.name, len(names)), one.kind, len(ends))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        ends.append(one.end)
    return columns


def _place(tracks: list[dict[str, Any]], name: str, process: int, columns: dict[str, list[Any]]) -> int:
    """Show a stream behind one of that name that has ended (another epoch's worker), or else on a track of its own."""
    until = max(start + length for start, length in zip(columns["start"], columns["length"], strict=True))
    for number, track in enumerate(tracks):
        if track["title"] == name and track["until"] <= columns["start"][0]:
            track["processes"].append(process)
            track["until"] = until
            for column, values in columns.items():
                track[column] += values
            return number
    tracks.append({"title": name, "processes": [process], "until": until, **columns})
    return len(tracks) - 1


def _points(batches: Table) -> dict[str, Any]:
    """Wait and delay of batches over time, in seconds, thinned out evenly; the longest of those left out stay."""
    begin = int(batches["asked"].min()) if len(batches) else 0
    step = max(1, -(-len(batches) // MOST_POINTS))
    if step > 1:
        edges = np.arange(0, len(batches), step)
        longest = [int(edge + np.argmax(batches["wait"][edge : edge + step])) for edge in edges]
        batches = batches[longest]
    delays = zip((batches["delay"] / SECOND).tolist(), batches["made"].tolist(), strict=True)
    return {
        "batch": batches["batch"].tolist(),
        "run": batches["run"].tolist(),
        "time": ((batches["got"] - begin) / SECOND).tolist(),
        "wait": (batches["wait"] / SECOND).tolist(),
        "delay": [delay if made else None for delay, made in delays],
        "every": step,
    }
