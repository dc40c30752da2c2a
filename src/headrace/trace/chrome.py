"""A trace as Chrome's JSON, which Perfetto, chrome://tracing and TensorBoard read; written event by event."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import IO, Any

from headrace.trace.reader import Trace
from headrace.trace.slices import flows, slices, title, values

CATEGORY = "headrace"

Thread = Callable[[int], int]
"""The number of the thread that shows a stream."""


def write(trace: Trace, file: IO[str], *, coarse: bool = False) -> int:
    """Write the whole file; the number of events in it."""
    head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": trace.wall, "host": trace.host}
    file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
    count = append(events(trace, 0, coarse=coarse), file)
    file.write("\n]}\n")
    return count


def append(found: Iterator[str], file: IO[str]) -> int:
    """Write events with commas between them; how many there were."""
    count = 0
    for event in found:
        file.write(f",\n{event}" if count else event)
        count += 1
    return count


def events(trace: Trace, offset: int, *, coarse: bool = False, thread: Thread | None = None) -> Iterator[str]:
    """Every event as JSON text. ``offset``: nanoseconds to add to times since the trace's base."""
    at = thread or (lambda stream: trace.streams[stream].thread)
    yield from _names(trace, at)
    for stream, info in enumerate(trace.streams):
        where = f'"pid": {info.process}, "tid": {at(stream)}'
        for one in slices(trace, stream, coarse=coarse):
            yield (
                f'{{"ph": "X", "cat": "{CATEGORY} {one.kind}", "name": {_quoted(one.name)}, {where}, '
                f'"ts": {_micros(one.start + offset)}, "dur": {_micros(one.end - one.start)}, '
                f'"args": {json.dumps(one.detail) if one.detail else "{}"}}}'
            )
    for flow in flows(trace):
        # An arrow belongs to the slice that its time falls into, and a slice's end is no part of it.
        for phase, stream, time in (("s", flow.maker, flow.ready), ("f", flow.consumer, flow.got)):
            yield _event(
                ph=phase,
                bp="e",
                cat=CATEGORY,
                name="batch ready",
                id=flow.number,
                pid=trace.streams[stream].process,
                tid=at(stream),
                ts=time + offset - 1,
                args={"batch": flow.batch, "run": flow.run},
            )
    for value in values(trace):
        process = trace.streams[value.stream].process
        yield _event(
            ph="C", cat=CATEGORY, name=value.name, pid=process, ts=value.time + offset, args={value.name: value.value}
        )
    for time, stream, _, name, value in trace.marks.tolist():
        info = trace.streams[stream]
        yield _event(
            ph="i",
            s="p",
            cat=CATEGORY,
            name=trace.names[name],
            pid=info.process,
            tid=at(stream),
            ts=time + offset,
            args={"value": value},
        )


def _names(trace: Trace, at: Thread) -> Iterator[str]:
    """What processes and threads are called, and in which order they stand."""
    for stream, info in enumerate(trace.streams):
        where: dict[str, Any] = {"ph": "M", "pid": info.process, "tid": at(stream)}
        order = info.lane + 1
        yield _event(**where, name="thread_name", args={"name": f"headrace {title(trace, stream)}"})
        yield _event(**where, name="thread_sort_index", args={"sort_index": order})
        yield _event(**where, name="process_name", args={"name": f"{title(trace, stream)} ({info.process})"})
        yield _event(**where, name="process_sort_index", args={"sort_index": order})


@functools.lru_cache(4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _event(ts: int | None = None, **fields: Any) -> str:
    text = json.dumps(fields)
    return text if ts is None else f'{text[:-1]}, "ts": {_micros(ts)}}}'


def _micros(nanoseconds: int) -> str:
    """Microseconds with all their digits, which no float holds for times since 1970."""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}"
