"""A process that fetches, as the trainer sees it: it is started, spoken with, found to hang, and ended.

It is a fresh interpreter, so nothing is forked while somebody holds a lock, and it imports no torch. One that hangs is
killed: a driver may wait for its threads while it holds the interpreter's lock, and one of them for that.
"""

import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.wire import MessageKind
from headrace.sched.source import LOOK_SECONDS
from headrace.store.reading.interpreter import started

_BOOT = "import sys; from headrace.fetching.fetcher_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
CLOSE_SECONDS = 2.0
SILENT_SECONDS = 15.0
"""A fetcher that owes rows and shows no pulse for so long has hung. It shows one four times a second."""
START_SECONDS = 60.0
"""So long one may take to show its first."""


class Pulse:
    """Seconds for which a counter has not changed. Time is an argument."""

    def __init__(self, count: int, now: float) -> None:
        """``count``: where the counter stands ``now``."""
        self._count, self._looked, self.silent = count, now, 0.0

    def look(self, count: int, now: float) -> float:
        """Note where the counter stands ``now``; return for how long it has stood there while it was looked at."""
        if count != self._count:
            self._count, self.silent = count, 0.0
        else:
            # No more than one look: whoever looks may have been stopped, and the other with it.
            self.silent += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        return self.silent


class FetcherProcess:
    """A fetcher process, used by one thread at a time. Only ``end`` waits; it and the constructor are called with
    signals held.
    """

    def __init__(self, arena: Arena, first: bytes) -> None:
        """Start the process. ``first``: what it is told before anything else."""
        ours, theirs = socket.socketpair()
        try:
            self._process = started(_BOOT, theirs.fileno(), arena.fd)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._arena, self._socket, self._frames = arena, ours, wire.Frames()
        self._first_pulse = arena.pulse
        self._pulse = Pulse(self._first_pulse, time.monotonic())
        self.outbox = bytearray(first)
        """The bytes that it is to be told and that were not yet sent."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self) -> None:
        """Send as much as goes without waiting. Raises ``ConnectionError`` if the process is gone."""
        with suppress(BlockingIOError, InterruptedError):
            while self.outbox:
                del self.outbox[: self._socket.send(self.outbox)]

    def received(self) -> Iterator[tuple[MessageKind, bytes]]:
        """Messages that have come, without waiting. Raises ``ConnectionError`` if the process is gone."""
        with suppress(BlockingIOError, InterruptedError):
            while data := self._socket.recv(1 << 18):
                yield from self._frames.feed(data)
            raise ConnectionResetError

    def waited_for(self) -> tuple[int, int]:
        """(descriptor, events of ``poll``) to be woken by."""
        return self._socket.fileno(), select.POLLIN | (select.POLLOUT if self.outbox else 0)

    def hangs(self) -> bool:
        """True if the process shows no pulse, by now for too long."""
        pulse = self._arena.pulse
        allowed = START_SECONDS if pulse == self._first_pulse else SILENT_SECONDS
        return self._pulse.look(pulse, time.monotonic()) > allowed

    def kill(self) -> None:
        """Kill the process; it is ended with ``end`` all the same."""
        self._process.kill()

    def end(self) -> int:
        """End the process and return its exit code, if need be that of having been killed."""
        with suppress(OSError):  # forked processes may have it open, too
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            return self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
