"""What the tests of hardware attribution share: raw records and traces with chosen times."""

import struct
from pathlib import Path

import pytest

from headrace.core.errors import TraceError
from headrace.trace import format as F
from headrace.trace.hardware.perf import PerfSampler
from headrace.trace.reader import Trace, read
from headrace.trace.trace_file import record

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
def sampling(tmp_path_factory) -> None:
    """Skips a test where the kernel does not let us sample."""
    try:
        PerfSampler(tmp_path_factory.mktemp("probe") / "probe.hw", None, 100).close()
    except TraceError as error:
        pytest.skip(str(error))


def sample(
    event: int, ip: int, time: int, period: int = 1, *, pid: int = 1, tid: int = 1, kernel: bool = False
) -> bytes:
    return struct.pack("<IHHQQIIQQ", 9, 1 if kernel else 2, 48, event, ip, pid, tid, time, period)


def trailer(pid: int, time: int) -> bytes:
    return struct.pack("<IIQQ", pid, pid, time, 1)


def mmap2(pid: int, time: int, start: int, length: int, offset: int, name: str) -> bytes:
    text = name.encode() + b"\0"
    text = text.ljust(-(-len(text) // 8) * 8, b"\0")
    body = struct.pack("<IIQQQ24sII", pid, pid, start, length, offset, bytes(24), 5, 2) + text + trailer(pid, time)
    return struct.pack("<IHH", 10, 2, 8 + len(body)) + body


def fork(pid: int, parent: int, time: int) -> bytes:
    body = struct.pack("<IIIIQ", pid, parent, pid, parent, time) + trailer(parent, time)
    return struct.pack("<IHH", 7, 0, 8 + len(body)) + body


def execed(pid: int, time: int) -> bytes:
    body = struct.pack("<II8s", pid, pid, b"python") + trailer(pid, time)
    return struct.pack("<IHH", 3, 1 << 13, 8 + len(body)) + body


def lost(count: int) -> bytes:
    body = struct.pack("<QQ", 1, count) + trailer(1, 1)
    return struct.pack("<IHH", 2, 0, 8 + len(body)) + body


def traced(path: Path, spans: list[tuple[str, int, int]]) -> Trace:
    """A trace of one sample by this thread: (operation, start, length) since its base, in nanoseconds."""
    recording = record(path)
    stream = recording.stream()
    marks = []
    for name, start, length in spans:
        marks += [F.span(length), stream.operations([name])[0] + recording.base + start]
    first = min(start for _, start, _ in spans)
    end = max(start + length for _, start, length in spans)
    stream.sample(7, recording.base + first, end - first, -1, 0, 0, marks)
    return read(path)
