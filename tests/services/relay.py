"""A relay before a Cassandra server that breaks connections at a chosen step of the conversation."""

import contextlib
import enum
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEADER = struct.Struct(">BBhBi")
"""Of a message of the native protocol, version 4: version, flags, stream, operation, length."""


class Fault(enum.Enum):
    """What happens to every connection from the chosen step on."""

    CUT = "cut"
    """Closed."""
    RESET = "reset"
    """Closed without a word: the other side has an error from its socket."""
    STALL = "stall"
    """Nothing is passed on any more, and nothing is said of it."""
    HALF = "half"
    """Closed in the middle of the message."""


@dataclass(frozen=True)
class Breakage:
    """``step``: so many of the server's answers are passed on, counted over all connections. ``back``: after so many
    connections that were broken or refused everything works; None: never."""

    fault: Fault
    step: int
    back: int | None = None


@dataclass
class _Pair:
    near: socket.socket
    far: socket.socket
    answers: bytearray = field(default_factory=bytearray)


class Relay:
    """Listens on ``port`` of 127.0.0.1, in a thread of its own, until it is closed."""

    def __init__(self, upstream: tuple[str, int], breakage: Breakage) -> None:
        self._upstream, self._breakage = upstream, breakage
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.answers = 0
        """Messages of the server so far."""
        self.broken = 0
        """Connections that were broken, or refused after others were."""
        self._stopped, self._stop = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._pairs: list[_Pair] = []
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    with contextlib.suppress(OSError):  # closed, perhaps together with another one of these
                        self._pass_on(key.data, key.fileobj is key.data.far)

    @property
    def _works(self) -> bool:
        back = self._breakage.back
        return self.answers < self._breakage.step or (back is not None and self.broken >= back)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        pair = _Pair(near, socket.create_connection(self._upstream))
        self._pairs.append(pair)
        for one in (pair.near, pair.far):
            self._selector.register(one, selectors.EVENT_READ, pair)
        if not self._works:
            self._break(pair)

    def _pass_on(self, pair: _Pair, from_server: bool) -> None:
        source, target = (pair.far, pair.near) if from_server else (pair.near, pair.far)
        data = source.recv(1 << 16)
        if not data:
            self._close(pair)
        elif not from_server:
            target.sendall(data)
        else:
            pair.answers += data
            while (size := self._complete(pair.answers)) and self._works:
                self.answers += 1
                target.sendall(pair.answers[:size])
                del pair.answers[:size]
            if size:
                self._break(pair)

    @staticmethod
    def _complete(held: bytearray) -> int:
        """The size of the first message, if all of it is here."""
        if len(held) < _HEADER.size:
            return 0
        size = _HEADER.size + int(_HEADER.unpack_from(held)[4])
        return size if len(held) >= size else 0

    def _break(self, pair: _Pair) -> None:
        self.broken += 1
        fault = self._breakage.fault
        if fault is Fault.STALL:
            for one in (pair.near, pair.far):
                self._selector.unregister(one)
            return
        if fault is Fault.HALF and pair.answers:
            pair.near.sendall(pair.answers[: 1 + len(pair.answers) // 2])
        if fault is Fault.RESET:
            pair.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(pair)

    def _close(self, pair: _Pair) -> None:
        for one in (pair.near, pair.far):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
            one.close()

    def close(self) -> None:
        """Everything ends."""
        self._stop.close()
        self._thread.join()
        for pair in self._pairs:
            self._close(pair)
        self._selector.close()
        self._stopped.close()
        self._listener.close()


@contextlib.contextmanager
def relayed(upstream: tuple[str, int], breakage: Breakage) -> Iterator[Relay]:
    """One that is closed at the end."""
    relay = Relay(upstream, breakage)
    try:
        yield relay
    finally:
        relay.close()
