"""Frames on their way to the trainer: whoever sends one waits for nobody."""

import asyncio
import socket


class Outbox:
    """The sending half of a fetching process's socket, in the event loop that runs when a frame is sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting = bytearray()
        self._sending: asyncio.Task[None] | None = None

    def send(self, data: bytes) -> None:
        """Send frames behind those that wait."""
        self._waiting += data
        if self._sending is None:
            self._sending = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            data, self._waiting = self._waiting, bytearray()
            await loop.sock_sendall(self._connection, data)
        self._sending = None
