"""Ends of a socket between a process and one that it started: numbered messages, none of them waited for.

A message is a length, a number, and one value, pickled: only what these two processes wrote comes this way.
"""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_FRAME = struct.Struct("<QQ")
"""Bytes behind this, number."""
_CHUNK = 1 << 18

Taken = Callable[[int, Any], None]


class Channel:
    """End of a channel, for the event loop that runs now. ``close`` closes the socket at once, whatever is under
    way.
    """

    def __init__(self, connection: socket.socket, taken: Taken, lost: Callable[[], None]) -> None:
        """``taken``: given every message. ``lost``: called once, when the other end is gone; not after ``close``."""
        connection.setblocking(False)
        self._socket, self._taken, self._lost = connection, taken, lost
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._loop.add_reader(connection, self._read)

    def send(self, number: int, message: object) -> None:
        """Send a message as soon as the socket takes it. Raises where it cannot be pickled."""
        body = pickle.dumps(message)
        self._outgoing += _FRAME.pack(len(body), number)
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
            size, number = _FRAME.unpack_from(self._incoming)
            if len(self._incoming) < _FRAME.size + size:
                break
            # A slice of the bytearray would be one more copy; and none can be cut while a view of it is kept.
            body = bytes(memoryview(self._incoming)[_FRAME.size : _FRAME.size + size])
            del self._incoming[: _FRAME.size + size]
            self._taken(number, pickle.loads(body))  # noqa: S301  (from the process that this one started, or the reverse)

    def _end(self) -> None:
        self.close()
        self._lost()

    def close(self) -> None:
        """Close the channel. May be called twice, and after the loop has ended."""
        if self._socket.fileno() >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            with suppress(OSError):  # processes forked meanwhile have it open, too
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
