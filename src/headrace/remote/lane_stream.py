"""A stream to one lane: what comes is read straight into the memory where it is to lie, or not read at all.

Not reading is how a lane is held back: its answer fills the buffers on the way, and then it waits.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

from headrace.remote import messages
from headrace.remote.messages import EntryKind, Head, Subject

PIECES = 64
"""Places that one call of the system fills."""

Table = list[tuple[EntryKind, int]]


class GroupReader(Protocol):
    """The reader of what comes over a stream. Called by the event loop; must not wait."""

    def ready(self, lane: int) -> None:
        """Note that the lane has shown that it makes samples."""

    def heard(self, lane: int) -> None:
        """Note that something came."""

    def room(self, lane: int, head: Head, table: Table) -> list[memoryview] | None:
        """The memory in which the entries of an answer are to lie; None: nowhere yet, and the stream is to be
        ``resumed``.
        """

    def came(self, lane: int, head: Head, table: Table) -> None:
        """Note that the entries lie in the memory that ``room`` gave."""

    def lost(self, lane: int, why: str) -> None:
        """The stream has ended. Nothing more is called for this lane."""

    def refused(self, lane: int, why: str) -> None:
        """Note that samples made there would not be those made here, or cannot be made there at all."""


class GroupStream:
    """A connection, after it was made. Belongs to the event loop."""

    def __init__(self, lane: int, connection: socket.socket, reader: GroupReader) -> None:
        """Reads from now on."""
        connection.setblocking(False)
        with suppress(OSError):  # no TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lane, self._socket, self._reader = lane, connection, reader
        self._loop = asyncio.get_running_loop()
        self._outbox = bytearray()
        self._start()
        self.is_reading = False
        """Whether it would be noticed if something came."""
        self._listen(reads=True)

    def _start(self) -> None:
        """The next message begins."""
        self._head: Head | None = None
        self._table: Table | None = None
        self._expect(messages.HEAD.size)

    def _expect(self, size: int) -> None:
        self._small = bytearray(size)
        self._views = [memoryview(self._small)] if size else []

    def _listen(self, *, reads: bool) -> None:
        if reads != self.is_reading:
            self.is_reading = reads
            if reads:
                self._loop.add_reader(self._socket, self._readable)
            else:
                self._loop.remove_reader(self._socket)

    def send(self, data: bytes) -> None:
        """Does not wait."""
        writes = bool(self._outbox)
        self._outbox += data
        if not writes:
            self._writable()

    def _writable(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket, self._writable)
            return
        except OSError as error:
            self._lose(str(error))
            return
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            count = self._socket.recvmsg_into(self._views[:PIECES])[0]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(str(error))
            return
        if not count:
            self._lose("the stream was closed")
            return
        self._reader.heard(self._lane)
        self._fill(count)
        try:
            while not self._views and self.is_reading:
                self._complete()
        except ValueError as error:
            self._lose(str(error))

    def _fill(self, count: int) -> None:
        done = 0
        for view in self._views:
            if len(view) > count:
                self._views[done] = view[count:]
                break
            count -= len(view)
            done += 1
        del self._views[:done]

    def _complete(self) -> None:
        """Go on with what was expected, which is here."""
        if self._head is None:
            self._head = head = Head.read(self._small)
            self._expect(messages.table_size(head.samples) if head.kind == Subject.ANSWER else head.size)
        elif self._head.kind == Subject.ANSWER and self._table is None:
            self._table = messages.read_table(self._small, self._head)
            self.resume()
        else:
            head, table = self._head, self._table
            text = bytes(self._small)
            self._start()
            if table is not None:
                self._reader.came(self._lane, head, table)
            elif head.kind == Subject.HELLO:
                self._reader.ready(self._lane)
            elif head.kind == Subject.REFUSAL:
                self.close()
                self._reader.refused(self._lane, text.decode("utf-8", "replace"))
            elif head.kind != Subject.BEAT:
                raise ValueError("what came over the stream is no answer")

    def resume(self) -> None:
        """Ask again where the entries are to lie."""
        if self._head is None or self._table is None or self._views:
            return
        views = self._reader.room(self._lane, self._head, self._table)
        if views is None:
            self._listen(reads=False)
            return
        self._views = [view for view in views if len(view)]
        self._listen(reads=True)
        if not self._views:  # entries of no bytes
            self._complete()

    @property
    def is_paused(self) -> bool:
        """True if an answer waits for room."""
        return not self.is_reading and self._socket.fileno() >= 0

    def close(self) -> None:
        """Ends it; may be called twice. The reader is not told."""
        if self._socket.fileno() >= 0:
            self._listen(reads=False)
            self._loop.remove_writer(self._socket)
            self._views = []
            self._socket.close()

    def _lose(self, why: str) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._reader.lost(self._lane, why)


async def opened(address: str, port: int, token: bytes, seconds: float) -> socket.socket:
    """A connection on which the token was shown. Raises ``OSError`` or ``TimeoutError``."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(seconds):
            await loop.sock_connect(connection, (address, port))
            await loop.sock_sendall(connection, token)
    except BaseException:
        connection.close()
        raise
    return connection
