"""Both ends of a socket between a process and one that it started: numbered messages, none of them waited for.

A message is a head of plain values and any number of bytes behind it: a length, a number, the head's length, the head
as JSON, the bytes.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

_FRAME = struct.Struct("<QQI")
"""Bytes behind this, number, bytes of the head."""
_CHUNK = 1 << 18

Taken = Callable[[int, dict[str, Any], memoryview], None]


class Channel:
    """One end, for the event loop that runs now. Closing it closes the socket at once, whatever is under way."""

    def __init__(self, connection: socket.socket, taken: Taken, lost: Callable[[], None]) -> None:
        """``taken``: given every message. ``lost``: called once, when the other end is gone; not after ``close``."""
        connection.setblocking(False)
        self._socket, self._taken, self._lost = connection, taken, lost
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._loop.add_reader(connection, self._read)

    def send(self, number: int, head: dict[str, Any], parts: Iterable[bytes | memoryview] = ()) -> None:
        """Sent as soon as the socket takes it."""
        text, body = json.dumps(head).encode(), b"".join(parts)
        self._outgoing += _FRAME.pack(len(text) + len(body), number, len(text)) + text
        self._outgoing += body
        self._write()

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._write)
        except OSError:
            self._end()
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._incoming += data
        while len(self._incoming) >= _FRAME.size:
            size, number, head = _FRAME.unpack_from(self._incoming)
            if len(self._incoming) < _FRAME.size + size:
                break
            body = memoryview(bytes(memoryview(self._incoming)[_FRAME.size : _FRAME.size + size]))
            del self._incoming[: _FRAME.size + size]
            self._taken(number, json.loads(bytes(body[:head])), body[head:])

    def _end(self) -> None:
        self.close()
        self._lost()

    def close(self) -> None:
        """May be called twice, and after the loop has ended."""
        if self._socket.fileno() >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            with suppress(OSError):  # processes forked meanwhile have it open, too
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
