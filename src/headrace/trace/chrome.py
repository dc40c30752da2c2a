"""A trace as Chrome's JSON, which Perfetto, chrome://tracing and TensorBoard read; written event by event."""

import functools
import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from headrace.core.errors import TraceError
from headrace.trace.analysis.slices import flows, slices, title, values
from headrace.trace.reader import Trace

CATEGORY = "headrace"
BESIDE = 1_000_000_000
"""Added to the number of a thread that torch shows as well: slices of two clocks' reading need not nest."""


def write(trace: Trace, file: IO[str], *, coarse: bool = False, torch: Mapping[str, Any] | None = None) -> int:
    """Write the whole file; the number of events in it.

    ``torch``: what ``torch.profiler`` exported (``read_torch``). Its events are in the file too, as they are; ours are
    moved to its zero, which was 1970 before it wrote down another.
    """
    alone = {"displayTimeUnit": "ms", "baseTimeNanoseconds": trace.wall, "host": trace.host, "traceEvents": []}
    head = dict(alone if torch is None else torch)
    theirs = head.pop("traceEvents")
    offset = trace.wall - head.get("baseTimeNanoseconds", 0)
    file.write(json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n')
    count = 0
    for event in itertools.chain(_events(trace, offset, theirs, coarse=coarse), map(json.dumps, theirs)):
        file.write(f",\n{event}" if count else event)
        count += 1
    file.write("\n]}\n")
    return count


def read_torch(path: str) -> dict[str, Any]:
    """The Chrome trace at that path, plain or gzipped. Raises ``TraceError`` when it is none."""
    where = Path(path)
    try:
        raw = where.read_bytes()
    except OSError as error:
        raise TraceError(f"{where}: cannot be read ({error.strerror})") from error
    try:
        found = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{where}: this is not a trace of torch.profiler (no complete JSON)") from error
    if isinstance(found, list):  # the other form that Chrome knows
        found = {"traceEvents": found}
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise TraceError(f"{where}: this is not a trace of torch.profiler (it has no traceEvents)")
    if not isinstance(found.get("baseTimeNanoseconds", 0), int):
        raise TraceError(f"{where}: the trace of torch.profiler has a baseTimeNanoseconds that is no integer")
    return found


def _events(trace: Trace, offset: int, theirs: list[Any], *, coarse: bool) -> Iterator[str]:
    """Every event of ours as JSON text. ``offset``: nanoseconds to add to times since the trace's base."""
    known = [event for event in theirs if isinstance(event, dict)]
    taken = {(event.get("pid"), event.get("tid")) for event in known}
    named = {event.get("pid") for event in known if event.get("name") == "process_name"}

    def at(stream: int) -> dict[str, Any]:
        info = trace.streams[stream]
        return {"pid": info.process, "tid": info.thread + BESIDE * ((info.process, info.thread) in taken)}

    yield from _names(trace, at, named)
    for stream in range(len(trace.streams)):
        where = json.dumps(at(stream))[1:-1]
        for one in slices(trace, stream, coarse=coarse):
            yield (
                f'{{"ph": "X", "cat": "{CATEGORY} {one.kind}", "name": {_quoted(one.name)}, {where}, '
                f'"ts": {_micros(one.start + offset)}, "dur": {_micros(one.end - one.start)}, '
                f'"args": {json.dumps(one.detail) if one.detail else "{}"}}}'
            )
    for flow in flows(trace):
        fields = {"bp": "e", "name": "batch ready", "id": flow.number, "args": {"batch": flow.batch, "run": flow.run}}
        # An arrow belongs to the slice that its time falls into, and a slice's end is no part of it.
        for phase, stream, time in (("s", flow.maker, flow.ready), ("f", flow.trainer, flow.got)):
            yield _event(phase, time + offset - 1, **fields, **at(stream))
    for value in values(trace):
        process = trace.streams[value.stream].process
        yield _event("C", value.time + offset, name=value.name, pid=process, args={value.name: value.value})
    for time, stream, _, name, value in trace.marks.tolist():
        yield _event("i", time + offset, s="p", name=trace.names[name], args={"value": value}, **at(stream))


def _names(trace: Trace, at: Callable[[int], dict[str, Any]], named: set[Any]) -> Iterator[str]:
    """Events that name threads and processes (torch names its own) and put them in order."""
    for stream, info in enumerate(trace.streams):
        names = {"thread": f"headrace {title(trace, stream)}"}
        if info.process not in named:
            names["process"] = f"{title(trace, stream)} ({info.process})"
        for what, name in names.items():
            for fact, value in (("name", name), ("sort_index", info.lane + 1)):
                yield json.dumps({"ph": "M", **at(stream), "name": f"{what}_{fact}", "args": {fact: value}})


@functools.lru_cache(4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _event(phase: str, nanoseconds: int, **fields: Any) -> str:
    return f'{json.dumps({"ph": phase, "cat": CATEGORY, **fields})[:-1]}, "ts": {_micros(nanoseconds)}}}'


def _micros(nanoseconds: int) -> str:
    """Microseconds with all their digits, which no float holds for times since 1970."""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}"
