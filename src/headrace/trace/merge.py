"""One timeline of a trace and one that ``torch.profiler`` exported."""

import gzip
import json
import zlib
from pathlib import Path
from typing import IO, Any

from headrace.core.errors import TraceError
from headrace.trace import chrome
from headrace.trace.reader import Trace

BESIDE = 1_000_000_000
"""Added to the number of a thread that torch shows as well: slices of two clocks' reading need not nest."""


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
    return found


def offset(trace: Trace, torch: dict[str, Any]) -> int:
    """Nanoseconds from torch's zero to the trace's base; torch's zero was 1970 before it wrote down another."""
    base = torch.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int):
        raise TraceError("the trace of torch.profiler has a baseTimeNanoseconds that is no integer")
    return trace.wall - base


def write(trace: Trace, torch: dict[str, Any], file: IO[str], *, coarse: bool = False) -> int:
    """Write both; the number of events in the file. Torch's events stay as they are."""
    theirs = torch["traceEvents"]
    taken = {(event.get("pid"), event.get("tid")) for event in theirs if isinstance(event, dict)}

    def thread(stream: int) -> int:
        info = trace.streams[stream]
        return info.thread + BESIDE * ((info.process, info.thread) in taken)

    named = {event.get("pid") for event in theirs if isinstance(event, dict) and event.get("name") == "process_name"}
    ours = (
        event
        for event in chrome.events(trace, offset(trace, torch), coarse=coarse, thread=thread)
        if not _names_again(event, named)
    )
    head = {name: value for name, value in torch.items() if name != "traceEvents"}
    file.write(json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n')
    count = chrome.append(ours, file)
    for event in theirs:
        file.write(",\n" + json.dumps(event))
    file.write("\n]}\n")
    return count + len(theirs)


def _names_again(event: str, named: set[Any]) -> bool:
    """Whether it would rename a process that torch has named."""
    if '"process_' not in event:
        return False
    found = json.loads(event)
    return found["ph"] == "M" and found["name"].startswith("process_") and found["pid"] in named
