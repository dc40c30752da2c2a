"""The fetcher's process: an event loop with many requests in flight, and nothing else.

It reads its orders from a socket and ends when that is closed, so it does not outlive who started it.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.errors import StoreError
from headrace.core.options import Prefetch
from headrace.fetching import wire
from headrace.fetching.arena import PULSE, Arena
from headrace.fetching.wire import MessageKind
from headrace.store import disposable, failures
from headrace.store.reading.interpreter import unpacked

PULSE_SECONDS = 0.25
"""How often the loop shows that it runs."""
COLLECT_EVERY = 20_000
"""Objects more than were freed, before the garbage collector looks: a row in flight is a dozen, and none is a cycle."""


class Told(Protocol):
    """A loop that brings what the training process asks for."""

    def told(self, kind: MessageKind, body: bytes) -> None:
        """Take in a message of the trainer."""


@dataclass(frozen=True, kw_only=True)
class Orders(ABC):
    """The orders that a fetcher is told first."""

    prefetch: Prefetch
    batch: int
    """Rows in a batch."""
    live: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) in the arena that an earlier fetcher wrote and somebody still needs."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the rows' source, as errors call it."""

    @abstractmethod
    def begun(self, connection: socket.socket, arena: Arena) -> Told:
        """The loop that follows them, which runs until the process ends."""


def main(connection: int, arena: int) -> None:
    """Run until the socket ``connection`` is closed. ``arena``: where to put what arrives."""
    disposable.declare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process decides
    gc.set_threshold(COLLECT_EVERY)
    size = os.fstat(arena).st_size - PULSE
    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
        asyncio.run(_serve(socket.socket(fileno=connection), Arena(size, arena)))
    os._exit(0)  # drivers with threads of their own may not survive an orderly end, and nothing is left to be ended


async def _serve(connection: socket.socket, arena: Arena) -> None:
    connection.setblocking(False)
    loop, frames = asyncio.get_running_loop(), wire.Frames()
    fetching: Told | None = None
    while data := await loop.sock_recv(connection, 1 << 18):
        for kind, body in frames.feed(data):
            if kind is MessageKind.OPEN:
                try:
                    orders: Orders = unpacked(body)
                except StoreError as error:
                    await loop.sock_sendall(connection, wire.facts(MessageKind.FATAL, failures.described(error)))
                    continue
                fetching = orders.begun(connection, arena)
                gc.freeze()  # what was imported stays
                _live(loop, arena)  # not before: to load a program may take longer than a pulse may be missed
            elif fetching is not None:
                fetching.told(kind, body)


def _live(loop: asyncio.AbstractEventLoop, arena: Arena) -> None:
    arena.beat()
    loop.call_later(PULSE_SECONDS, _live, loop, arena)
