"""Records of the kernel about a program: samples as a table, and the history of its address spaces.

A file of records is what came out of the rings, one after another, with notes of our own between them. Every record
begins with its type (32 bits), a mode (16) and its size (16), as the kernel lays them out.
"""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import TraceError

Table = npt.NDArray[Any]

_IP, _TID, _TIME, _ADDRESS, _PERIOD, _IDENTIFIER = 1, 2, 4, 8, 256, 1 << 16  # perf_event_attr.sample_type
SAMPLE_TYPE = _IDENTIFIER | _IP | _TID | _TIME | _PERIOD
SAMPLE_TYPE_FIXED = _IDENTIFIER | _IP | _TID | _TIME | _ADDRESS
"""For events with a fixed period: asked for its period, the kernel would report every event. An address fills in."""
_LOST, _COMM, _FORK, _SAMPLE, _MMAP2, _LOST_SAMPLES, _NOTE = 2, 3, 7, 9, 10, 13, 0x48524E54
_HEAD = struct.Struct("<IHH")
_RAW = np.dtype(
    [
        ("type", "<u4"),
        ("misc", "<u2"),
        ("size", "<u2"),
        ("id", "<u8"),
        ("ip", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("time", "<u8"),
        ("period", "<u8"),
    ]
)
_MMAP2_BODY = struct.Struct("<IIQQQ24sII")
_TRAILER = struct.Struct("<IIQQ")  # what every record but a sample ends with: pid, tid, time, id
_MODE, _KERNEL_MODE, _EXEC = 7, 1, 1 << 13

SAMPLES = np.dtype(
    [
        ("event", "i4"),
        ("process", "i4"),
        ("thread", "i4"),
        ("time", "i8"),
        ("ip", "u8"),
        ("period", "i8"),
        ("kernel", "?"),
    ]
)


@dataclass(frozen=True, order=True)
class Change:
    """A change of an address space."""

    time: int
    kind: str
    """"map", "fork" or "exec"."""
    process: int
    parent: int = 0
    start: int = 0
    end: int = 0
    offset: int = 0
    file: str = ""


@dataclass
class Records:
    """A file of records, taken apart. Times are CLOCK_MONOTONIC nanoseconds."""

    samples: Table = field(default_factory=lambda: np.empty(0, SAMPLES))
    """In order of time; ``event`` is a position in ``events``."""
    events: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    lost: int = 0
    kernel: bool = True
    """Whether kernel code was sampled."""
    frequency: int = 0
    totals: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Of each event: how often in all, nanoseconds it was wanted, nanoseconds it was counted."""


def note(text: bytes) -> bytes:
    """A record of our own."""
    text = text.ljust(-(-len(text) // 8) * 8)
    return _HEAD.pack(_NOTE, 0, 8 + len(text)) + text


def read(path: Path) -> Records:
    """The records of a file. Raises ``TraceError`` when it is none."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    if len(raw) < _HEAD.size or _HEAD.unpack_from(raw)[0] != _NOTE:
        raise TraceError(f"{path}: this is no file of samples; 'headrace trace hw' writes one beside the trace")
    try:
        return parse(raw)
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise TraceError(f"{path}: the file of samples is damaged ({type(error).__name__}: {error})") from error


def parse(raw: bytes) -> Records:
    """Records up to the first that is not whole: the writer may have been killed."""
    found = Records()
    runs: list[Table] = []
    names: dict[int, str] = {}
    periods: dict[str, int] = {}
    at = 0
    while at + _HEAD.size <= len(raw):
        kind, mode, size = _HEAD.unpack_from(raw, at)
        if size < _HEAD.size or at + size > len(raw):
            break
        if kind == _SAMPLE and size == _RAW.itemsize:
            run = _run(raw, at)
            runs.append(run)
            at += run.nbytes
            continue
        body = raw[at + _HEAD.size : at + size]
        if kind == _NOTE:
            _noted(found, names, periods, json.loads(body))
        elif kind in {_LOST, _LOST_SAMPLES}:
            found.lost += int(struct.unpack_from("<Q", body, 8 if kind == _LOST else 0)[0])
        else:
            change = _change(kind, mode, body)
            if change is not None:
                found.changes.append(change)
        at += size
    found.changes.sort(key=lambda change: change.time)
    found.events = list(dict.fromkeys(names.values()))
    if runs:
        found.samples = _samples(np.concatenate(runs), names, found.events)
    for name, period in periods.items():
        if name not in found.events:
            continue  # cut off before its event was named
        found.samples["period"][found.samples["event"] == found.events.index(name)] = period
    return found


def _run(raw: bytes, at: int) -> Table:
    """The samples that follow each other from ``at``: there are many, and little else."""
    # No more at once: each run would look at all that is left of the file.
    rows = np.frombuffer(raw, _RAW, min((len(raw) - at) // _RAW.itemsize, 65536), at)
    other = np.flatnonzero((rows["type"] != _SAMPLE) | (rows["size"] != _RAW.itemsize))
    return rows[: other[0]] if len(other) else rows


def _samples(raw: Table, names: dict[int, str], events: list[str]) -> Table:
    known = np.array(sorted(names), np.uint64)
    number = np.array([events.index(names[int(identity)]) for identity in known], np.int32)
    raw = raw[np.isin(raw["id"], known)]
    samples = np.empty(len(raw), SAMPLES)
    samples["event"] = number[np.searchsorted(known, raw["id"])]
    samples["process"], samples["thread"], samples["time"] = raw["pid"], raw["tid"], raw["time"]
    samples["ip"], samples["period"] = raw["ip"], raw["period"]
    samples["kernel"] = raw["misc"] & _MODE == _KERNEL_MODE
    ordered: Table = samples[np.argsort(samples["time"], kind="stable")]
    return ordered


def _noted(found: Records, names: dict[int, str], periods: dict[str, int], facts: dict[str, Any]) -> None:
    periods.update(facts.get("periods", {}))
    names.update({int(identity): name for identity, name in facts.get("events", {}).items()})
    found.kernel = facts.get("kernel", found.kernel)
    found.frequency = facts.get("frequency", found.frequency)
    found.totals.update({name: (total[0], total[1], total[2]) for name, total in facts.get("totals", {}).items()})


def _change(kind: int, mode: int, body: bytes) -> Change | None:
    time = _TRAILER.unpack_from(body, len(body) - _TRAILER.size)[2]
    if kind == _MMAP2:
        process, _, start, length, offset, _, _, _ = _MMAP2_BODY.unpack_from(body)
        name = body[_MMAP2_BODY.size : -_TRAILER.size].partition(b"\0")[0].decode(errors="replace")
        return Change(time, "map", process, 0, start, start + length, offset, name)
    if kind == _FORK:
        process, parent = struct.unpack_from("<II", body)
        return Change(time, "fork", process, parent) if process != parent else None
    if kind == _COMM and mode & _EXEC:
        return Change(time, "exec", struct.unpack_from("<I", body)[0])
    return None
