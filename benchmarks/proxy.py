"""A long way to a server, on one machine: a relay that delays, holds back and slows each connection for itself.

One loop in a process of its own. Bytes wait half a round trip in each direction. ``window``: bytes on the way to the
client and not acknowledged, at most, on one connection, as TCP has it; ``rate``: bytes a second to the client, on one
connection; ``line``: on all of them together. ``fresh``: a new connection costs a round trip before its first byte, and
its window begins at ten segments and grows by what is acknowledged, as TCP's slow start does. ``late``: so large a part
of what clients send waits ``late_s`` longer; where one message is one request, those are its late answers. Loss is not
modelled.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import mmap
import multiprocessing
import os
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

CHUNK, SLOW_CHUNK = 256 << 10, 16 << 10
HOLD = 64 << 20
"""Bytes that one connection holds where it has no window."""
BIN_S, BINS = 0.1, 6000
CONNECTIONS, RECEIVED = 0, 1
FIRST_WINDOW, LAST_WINDOW = 14_600, 4 << 20
"""Bytes on the way on a new connection, ten segments, and where its growth ends."""
BACKLOG = 4096


@dataclass(frozen=True)
class Link:
    """What is between a client and its server."""

    round_trip: float = 0.0
    """Seconds."""
    window: int | None = None
    rate: float | None = None
    fresh: bool = False
    late: float = 0.0
    late_s: float = 2.0


class Proxy:
    """Context manager: a relay to ``upstream``. ``special``: links of single connections, by order of arrival."""

    def __init__(
        self,
        upstream: tuple[str, int],
        link: Link,
        special: Mapping[int, Link] | None = None,
        *,
        line: float | None = None,
        core: int | None = None,
    ) -> None:
        """The first connection to arrive is number 0. ``line``: bytes a second to all clients; None: no limit.
        ``core``: where it runs.
        """
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._shared = mmap.mmap(-1, 8 * (2 + BINS))
        self._counts = memoryview(self._shared).cast("q")
        self._began = time.monotonic()
        relay = (core, self._listener, upstream, link, dict(special or {}), line, self._counts, self._began)
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=relay, daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._counts.release()
        self._shared.close()

    @property
    def connections(self) -> int:
        """How many have arrived."""
        return int(self._counts[CONNECTIONS])

    @property
    def sent(self) -> int:
        """Bytes that the server sent so far."""
        return int(self._counts[RECEIVED])

    @property
    def cpu(self) -> float:
        """Seconds it has used."""
        return time.clock_gettime((~(self._process.pid or 0) << 3) | 2)

    def rates(self, began: float, ended: float) -> list[float]:
        """Bytes a second that the server sent in each tenth of a second between two moments of ``time.monotonic``."""
        first, last = (int((moment - self._began) / BIN_S) for moment in (began, ended))
        return [self._counts[2 + index] / BIN_S for index in range(first, min(last, BINS))]


def _serve(core: int | None, *relay: Any) -> None:
    if core is not None:
        os.sched_setaffinity(0, [core])
    with contextlib.suppress(KeyboardInterrupt):
        Relay(*relay).run()


@dataclass(eq=False)
class Way:
    """One direction of a connection: what was received and is not due, or could not be sent."""

    source: socket.socket
    sink: socket.socket
    link: Link
    down: bool
    held: deque[tuple[float, memoryview]] = field(default_factory=deque)
    unacknowledged: deque[tuple[float, int]] = field(default_factory=deque)
    out: int = 0
    free: float = 0.0
    """When the line has room for the next byte."""
    back: Way | None = None
    ended: bool = False
    window: int | None = None
    """Bytes that may be on the way now; None: no limit but ``HOLD``."""

    @property
    def full(self) -> bool:
        return self.out >= (self.window or HOLD)


class Relay:
    """The loop."""

    def __init__(
        self,
        listener: socket.socket,
        upstream: tuple[str, int],
        link: Link,
        special: Mapping[int, Link],
        line: float | None,
        counts: memoryview,
        began: float,
    ) -> None:
        self._listener, self._upstream, self._link, self._special = listener, upstream, link, special
        self._line, self._free = line, 0.0  # when the line of all connections has room for the next byte
        self._counts, self._began = counts, began
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._reads: dict[socket.socket, Way] = {}
        self._writes: dict[socket.socket, Way] = {}
        self._due: list[tuple[float, int, Way]] = []
        self._order = itertools.count()
        self._draw = random.Random(0)

    def run(self) -> None:
        """Until it is killed."""
        while True:
            patience = None if not self._due else max(0.0, self._due[0][0] - time.monotonic())
            for key, events in self._selector.select(patience):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end is self._listener:
                    self._accept()
                    continue
                if events & selectors.EVENT_WRITE and end in self._writes:
                    self._send(self._writes[end])
                if events & selectors.EVENT_READ and end in self._reads:
                    self._receive(self._reads[end])
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                way = heapq.heappop(self._due)[2]
                if way.source in self._reads:
                    self._send(way)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._upstream)
        link = self._special.get(self._counts[CONNECTIONS], self._link)
        self._counts[CONNECTIONS] += 1
        up = Way(client, server, replace(link, window=None, rate=None), down=False)
        down = Way(server, client, link, down=True, back=up, window=FIRST_WINDOW if link.fresh else link.window)
        if link.fresh:  # its first word waits for the handshake
            up.free = time.monotonic() + link.round_trip
        up.back = down
        for way in (up, down):
            way.source.setblocking(False)
            way.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reads[way.source] = self._writes[way.sink] = way
            self._selector.register(way.source, selectors.EVENT_READ)

    def _receive(self, way: Way) -> None:
        try:
            data = way.source.recv(self._chunk(way))
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            way.ended = True
            if not way.held:
                self._close(way)
            else:
                self._listen(way.source)
            return
        now = time.monotonic()
        if way.down:
            self._counts[RECEIVED] += len(data)
            index = 2 + int((now - self._began) / BIN_S)
            if index < len(self._counts):
                self._counts[index] += len(data)
        way.free = max(now, way.free) + (len(data) / way.link.rate if way.link.rate else 0.0)
        due = way.free + way.link.round_trip / 2
        if not way.down and way.link.late and self._draw.random() < way.link.late:
            way.free += way.link.late_s
            due += way.link.late_s
        if way.down and self._line:
            self._free = max(now, self._free) + len(data) / self._line
            due = max(due, self._free + way.link.round_trip / 2)
        way.held.append((due, memoryview(data)))
        way.out += len(data)
        if due <= now:
            self._send(way)
        else:
            heapq.heappush(self._due, (due, next(self._order), way))
        self._listen(way.source)

    def _chunk(self, way: Way) -> int:
        """Bytes to be read at once: a millisecond of a line that all share, so that they take turns."""
        if way.link.rate:
            return SLOW_CHUNK
        if way.link.fresh and way.window is not None:
            return min(CHUNK, way.window - way.out)
        return CHUNK if not self._line else max(SLOW_CHUNK, min(CHUNK, int(self._line / 1000)))

    def _send(self, way: Way) -> None:
        """What is due, as far as the sink takes it; and what was acknowledged makes room."""
        now = time.monotonic()
        while way.held and way.held[0][0] <= now:
            due, data = way.held[0]
            try:
                sent = way.sink.send(data)
            except BlockingIOError:
                break
            except OSError:
                self._close(way)
                return
            back = now + way.link.round_trip / 2
            if way.window and way.link.round_trip:
                way.unacknowledged.append((back, sent))
                heapq.heappush(self._due, (back, next(self._order), way))
            else:
                way.out -= sent
            if sent == len(data):
                way.held.popleft()
            else:
                way.held[0] = due, data[sent:]
        while way.unacknowledged and way.unacknowledged[0][0] <= now:
            acknowledged = way.unacknowledged.popleft()[1]
            way.out -= acknowledged
            if way.link.fresh and way.window is not None:
                way.window = min(LAST_WINDOW, way.window + acknowledged)
        if way.ended and not way.held:
            self._close(way)
            return
        self._listen(way.source)
        self._listen(way.sink)

    def _listen(self, end: socket.socket) -> None:
        """Wake for this end if there is room for what it has, or something due that it would not take."""
        reads, writes = self._reads[end], self._writes[end]
        events = selectors.EVENT_READ if not (reads.full or reads.ended) else 0
        if writes.held and writes.held[0][0] <= time.monotonic():
            events |= selectors.EVENT_WRITE
        known = self._selector.get_map().get(end)
        if known is None:
            if events:
                self._selector.register(end, events)
        elif not events:
            self._selector.unregister(end)
        elif known.events != events:
            self._selector.modify(end, events)

    def _close(self, way: Way) -> None:
        for end in (way.source, way.sink):
            if end in self._reads:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(end)
                del self._reads[end], self._writes[end]
                end.close()
