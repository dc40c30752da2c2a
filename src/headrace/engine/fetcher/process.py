"""The fetcher's process: an event loop with many requests in flight, and nothing else.

It reads its orders from a socket and ends when that is closed, so it does not outlive who started it.
"""

import asyncio
import contextlib
import gc
import json
import os
import pickle
import signal
import socket
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field

from headrace.core.options import Prefetch, Retry
from headrace.engine.fetcher import wire
from headrace.engine.fetcher.arena import PULSE, Arena
from headrace.engine.fetcher.extents import Extents
from headrace.engine.fetcher.wire import Arrived, Kind
from headrace.store.base import RemoteStore, Row, Session
from headrace.store.events import Event, Retried, Tally
from headrace.store.window import Window
from headrace.store.wrappers import Observed, Retrying

GATHER_SECONDS = 0.002
"""Rows that arrive within this time of each other are told together: one wake-up instead of many."""
PULSE_SECONDS = 0.25
"""How often the loop shows that it runs."""
COLLECT_EVERY = 20_000
"""Objects more than were freed, before the garbage collector looks: a row in flight is a dozen, and none is a cycle."""
FOR_ERRORS = 1 << 20
"""Bytes of the arena that payloads leave free."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a fetcher is told first."""

    store: RemoteStore
    prefetch: Prefetch
    retry: Retry
    batch: int
    """Rows in a batch."""
    live: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) in the arena that an earlier fetcher wrote and somebody still needs."""


def main(connection: int, arena: int) -> None:
    """Run until the socket ``connection`` is closed. ``arena``: where to put what arrives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process decides
    gc.freeze()  # what was imported stays
    gc.set_threshold(COLLECT_EVERY)
    size = os.fstat(arena).st_size - PULSE
    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
        asyncio.run(_serve(socket.socket(fileno=connection), Arena(size, arena)))
    os._exit(0)  # drivers with threads of their own may not survive an orderly end, and nothing is left to be ended


async def _serve(connection: socket.socket, arena: Arena) -> None:
    connection.setblocking(False)
    loop, frames = asyncio.get_running_loop(), wire.Frames()
    _live(loop, arena)
    fetching: Fetching | None = None
    while data := await loop.sock_recv(connection, 1 << 18):
        for kind, body in frames.feed(data):
            if kind is Kind.OPEN:
                orders = pickle.loads(body)  # noqa: S301  (from the process that started this one)
                fetching = Fetching(connection, arena, orders)
            elif fetching is not None:
                fetching.told(kind, body)


def _live(loop: asyncio.AbstractEventLoop, arena: Arena) -> None:
    arena.beat()
    loop.call_later(PULSE_SECONDS, _live, loop, arena)


class Fetching:
    """Asks for rows as far as the window and the memory allow, puts them into the arena, tells where they lie."""

    def __init__(self, connection: socket.socket, arena: Arena, orders: Orders) -> None:
        """Connects at once."""
        self._connection, self._arena = connection, arena
        self._extents = Extents(arena.size, orders.live)
        self._window, self._batch = Window(orders.prefetch, orders.batch), orders.batch
        self._tally = Tally()
        self._retried: Counter[str] = Counter()
        self._store = Retrying(Observed(orders.store, self._tally), orders.retry, self._noted)
        self._queue: deque[tuple[int, str]] = deque()
        self._flying: dict[int, asyncio.Task[None]] = {}
        self._least = 1  # rows that are needed at once: nothing is taken before they are all here
        self._held: set[int] = set()  # offsets of what arrived and is not said to be taken
        self._taken: set[int] = set()  # and of what is, until it is said to be free
        self._arrived: list[Arrived] = []
        self._outbox = bytearray()
        self._telling: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._main = asyncio.create_task(self._run())

    def _noted(self, event: Event) -> None:
        """A request is made again."""
        self._tally(event)
        if isinstance(event, Retried) and event.key is not None:
            self._retried[event.key] += 1

    def told(self, kind: Kind, body: bytes) -> None:
        """What the training process says."""
        if kind is Kind.ASK:
            wanted, group = wire.read_asks(body)
            self._queue.extend(wanted)
            self._least = max(self._least, group)
        elif kind is Kind.FREE:
            offsets = wire.read_numbers(body)
            for offset in offsets:
                self._extents.free(offset)
            consumed = self._taken.intersection(offsets)  # others were brought by a fetcher before this one
            self._taken -= consumed
            self._window.consumed(len(consumed))
        elif kind is Kind.TAKEN:
            taken = self._held.intersection(wire.read_numbers(body))
            self._held -= taken
            self._taken |= taken
            self._window.taken(len(taken))
        elif kind is Kind.WAITS:
            self._window.waited()
        elif kind is Kind.DROP:
            self._drop(set(wire.read_numbers(body)))
        self._wake.set()

    def _drop(self, numbers: set[int]) -> None:
        self._queue = deque(item for item in self._queue if item[0] not in numbers)
        for number in numbers & self._flying.keys():
            self._flying.pop(number).cancel()
            self._window.dropped()

    async def _run(self) -> None:
        """Connect, then ask as long as there is room."""
        try:
            session = await self._store.connect()
        except Exception as error:  # noqa: BLE001  (raised again in the training process)
            self._send(wire.facts(Kind.FATAL, wire.described(error)))
            return
        while True:
            self._wake.clear()
            while self._queue and (self._window.room or self._is_short):
                number, key = self._queue.popleft()
                self._window.requested()
                self._flying[number] = asyncio.create_task(self._fetch(session, number, key))
            await self._wake.wait()

    @property
    def _is_short(self) -> bool:
        """Whether the next group could not be had, whatever window and memory say.

        One that is being worked on may have lost samples, and wait for the next one to be filled up.
        """
        coming = len(self._flying) + len(self._held)
        return coming < self._least and self._window.outstanding < 2 * self._least

    async def _fetch(self, session: Session, number: int, key: str) -> None:
        began = time.monotonic_ns()
        try:
            row = await session.get(key)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (raised again where the sample is asked for)
            self._place(number, began, Row(key, json.dumps(wire.described(error)).encode(), None), failed=True)
        else:
            self._place(number, began, row, failed=False)

    def _place(self, number: int, began: int, row: Row, *, failed: bool) -> None:
        now = time.monotonic_ns()
        kind, label, blob = wire.NO_LABEL, 0, b""
        if isinstance(row.label, int):
            kind, label = wire.NUMBER_LABEL, row.label
        elif row.label is not None:
            kind, label, blob = wire.BLOB_LABEL, len(row.label), row.label
        size = len(row.payload)
        fits = failed or self._extents.used + size + len(blob) <= self._arena.size - FOR_ERRORS
        offset = self._extents.allocate(size + len(blob)) if fits else None
        if offset is None and not failed:
            words = (
                f"{self._store.name}: the row {row.key!r} has {size} bytes and finds no room among the payloads "
                f"that wait; use a larger Prefetch(memory=...)"
            )
            self._place(number, began, Row(row.key, _words(words, self._store.name, row.key), None), failed=True)
            return
        assert offset is not None, "an error message finds room: payloads never fill the arena to its end"
        retries = min(31, self._retried.pop(row.key, 0))
        self._arena.write(offset, row.payload, blob)
        self._flying.pop(number, None)
        self._held.add(offset)
        if not failed:
            self._window.arrived(now / 1e9, (now - began) / 1e9, size)
        self._arrived.append(Arrived(number, failed, kind, offset, size, label, began, now - began, retries))
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        self._wake.set()

    def _tell(self) -> None:
        self._telling = None
        arrived, self._arrived = self._arrived, []
        size = self._window.size
        counts = {
            **asdict(self._tally),
            "appetite": size + max(self._batch, size // 4),
            "window": size,
            "in_flight": len(self._flying),
        }
        self._send(wire.rows(arrived) + wire.facts(Kind.FACTS, counts))

    def _send(self, data: bytes) -> None:
        self._outbox += data
        if self._sending is None:
            self._sending = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outbox:
            data, self._outbox = self._outbox, bytearray()
            await loop.sock_sendall(self._connection, data)
        self._sending = None


def _words(message: str, server: str, key: str) -> bytes:
    return json.dumps({"error": "StoreError", "message": message, "server": server, "key": key}).encode()
