"""A trace as Perfetto's own protobuf, encoded by hand: a few messages of varints need no library.

Field numbers are those of perfetto/protos: trace.proto, trace_packet.proto, track_descriptor.proto, track_event.proto.
"""

import functools
from collections.abc import Iterator
from typing import IO

from headrace.trace.reader import Trace
from headrace.trace.slices import flows, slices, title, values

PACKET = 1  # of Trace
CLOCKS, TIMESTAMP, SEQUENCE, EVENT, FLAGS, TRACK = 6, 8, 10, 11, 13, 60  # of TracePacket
CLOCK, CLOCK_ID, CLOCK_TIME = 1, 1, 2  # of ClockSnapshot and its Clock
INCREMENTAL_CLEARED, REALTIME, MONOTONIC, BOOTTIME = 1, 1, 3, 6
UUID, NAME, PROCESS, THREAD, PARENT, COUNTER = 1, 2, 3, 4, 5, 8  # of TrackDescriptor
PID, PROCESS_NAME = 1, 6  # of ProcessDescriptor
THREAD_PID, TID, THREAD_NAME = 1, 2, 5  # of ThreadDescriptor
ANNOTATION, TYPE, EVENT_TRACK, CATEGORY, EVENT_NAME, VALUE, FLOW, LAST_FLOW = (
    4,
    9,
    11,
    22,
    23,
    30,
    47,
    48,
)  # of TrackEvent
BEGIN, END, INSTANT, COUNT = 1, 2, 3, 4
A_INT, A_STRING, A_NAME = 4, 6, 10  # of DebugAnnotation

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_SEQUENCE = 1


def write(trace: Trace, file: IO[bytes], *, coarse: bool = False) -> int:
    """Write the whole file; the number of packets in it."""
    count = 0
    for packet in packets(trace, coarse=coarse):
        file.write(_bytes(PACKET, packet))
        count += 1
    return count


def packets(trace: Trace, *, coarse: bool = False) -> Iterator[bytes]:
    """Every packet: tracks, slices, arrows, counters, marks. Times are the machine's monotonic clock."""
    tracks = _Tracks(trace)
    base = trace.base
    yield _clocks(base, trace.wall)
    yield from tracks.described()
    for stream in range(len(trace.streams)):
        track = tracks.of(stream)
        end = _int(TYPE, END) + _int(EVENT_TRACK, track)
        open_until: list[int] = []
        for one in slices(trace, stream, coarse=coarse):
            while open_until and open_until[-1] <= one.start:
                yield _packet(base + open_until.pop(), end)
            body = _begin(track, one.kind, one.name)
            for name, value in one.detail.items():
                body += _annotation(name, value)
            yield _packet(base + one.start, body)
            open_until.append(one.end)
        while open_until:
            yield _packet(base + open_until.pop(), end)
    for flow in flows(trace):
        # Instants, so that an arrow begins where the batch was ready and ends where it was got.
        for stream, time, name, field in (
            (flow.maker, flow.ready, f"batch {flow.batch} ready", FLOW),
            (flow.consumer, flow.got, f"got batch {flow.batch}", LAST_FLOW),
        ):
            body = _int(TYPE, INSTANT) + _int(EVENT_TRACK, tracks.of(stream)) + _text(EVENT_NAME, name)
            yield _packet(base + time, body + _fixed(field, flow.number))
    for value in values(trace):
        body = _int(TYPE, COUNT) + _int(EVENT_TRACK, tracks.counter(value.stream, value.name))
        yield _packet(base + value.time, body + _int(VALUE, int(value.value)))
    for time, stream, _, name, value in trace.marks.tolist():
        body = _int(TYPE, INSTANT) + _int(EVENT_TRACK, tracks.of(stream)) + _text(EVENT_NAME, trace.names[name])
        yield _packet(base + time, body + _annotation("value", value))


class _Tracks:
    """The numbers of tracks: one for a process, a thread of it, a counter of it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._numbers: dict[tuple[object, ...], int] = {}

    def _number(self, *what: object) -> int:
        return self._numbers.setdefault(what, len(self._numbers) + 1)

    def of(self, stream: int) -> int:
        return self._number("stream", stream)

    def counter(self, stream: int, name: str) -> int:
        return self._number("counter", self._trace.streams[stream].process, name)

    def described(self) -> Iterator[bytes]:
        """The descriptor of every track there is."""
        first = _int(SEQUENCE, _SEQUENCE) + _int(FLAGS, INCREMENTAL_CLEARED)
        processes: dict[int, int] = {}
        for stream, info in enumerate(self._trace.streams):
            name = title(self._trace, stream)
            if info.process not in processes:
                processes[info.process] = self._number("process", info.process)
                process = _int(PID, info.process) + _text(PROCESS_NAME, f"{name} ({info.process})")
                yield first + _bytes(TRACK, _int(UUID, processes[info.process]) + _bytes(PROCESS, process))
                first = _int(SEQUENCE, _SEQUENCE)
            thread = _int(THREAD_PID, info.process) + _int(TID, info.thread) + _text(THREAD_NAME, name)
            track = _int(UUID, self.of(stream)) + _int(PARENT, processes[info.process]) + _bytes(THREAD, thread)
            yield first + _bytes(TRACK, track)
        for stream, name in dict.fromkeys((value.stream, value.name) for value in values(self._trace)):
            parent = processes[self._trace.streams[stream].process]
            track = _int(UUID, self.counter(stream, name)) + _int(PARENT, parent) + _text(NAME, name)
            yield first + _bytes(TRACK, track + _bytes(COUNTER, b""))


@functools.lru_cache(4096)
def _begin(track: int, kind: str, name: str) -> bytes:
    return _int(TYPE, BEGIN) + _int(EVENT_TRACK, track) + _text(CATEGORY, kind) + _text(EVENT_NAME, name)


def _packet(time: int, event: bytes) -> bytes:
    return _OF_SEQUENCE + _int(TIMESTAMP, time) + _bytes(EVENT, event)


def _clocks(monotonic: int, wall: int) -> bytes:
    """What the clocks showed when the trace began. Packets have Perfetto's default, here the same as the monotonic."""
    shown = ((BOOTTIME, monotonic), (MONOTONIC, monotonic), (REALTIME, wall))
    clocks = (_bytes(CLOCK, _int(CLOCK_ID, clock) + _int(CLOCK_TIME, time)) for clock, time in shown)
    return _int(SEQUENCE, _SEQUENCE) + _bytes(CLOCKS, b"".join(clocks))


def _annotation(name: str, value: object) -> bytes:
    content = _int(A_INT, value) if isinstance(value, int) else _text(A_STRING, str(value))
    return _bytes(ANNOTATION, _text(A_NAME, name) + content)


def _varint(value: int) -> bytes:
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    value &= (1 << 64) - 1  # a negative number is written as its two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: tuple[bytes, ...] = ()
_SMALL = tuple(_varint(value) for value in range(1 << 14))


def _int(field: int, value: int) -> bytes:
    return _SMALL[field << 3 | _VARINT] + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _SMALL[field << 3 | _FIXED64] + value.to_bytes(8, "little")


def _bytes(field: int, content: bytes) -> bytes:
    return _SMALL[field << 3 | _BYTES] + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


_OF_SEQUENCE = _int(SEQUENCE, _SEQUENCE)
