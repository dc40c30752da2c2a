"""The loop that brings rows of a store: it asks for them as far as window and memory allow."""

import asyncio
import heapq
import json
import socket
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import cast

from headrace.core.errors import StoreError, StoreRefused, StoreUnavailable
from headrace.core.options import Retry
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.block_flight import BlockFlight
from headrace.fetching.block_pool import BlockPool, Keeping, Waiting
from headrace.fetching.extents import Extents
from headrace.fetching.fetcher_main import Orders
from headrace.fetching.outbox import Outbox
from headrace.fetching.revision_watch import RevisionWatch
from headrace.fetching.room import Room
from headrace.fetching.wire import Arrived, MessageKind
from headrace.store import failures
from headrace.store.base import RemoteStore, Row, Session
from headrace.store.reading.events import Event, Retried, Tally
from headrace.store.reading.neighbours import NeighbourBlock, NeighbourSession, NeighbourStore, unmarked
from headrace.store.reading.window import Window
from headrace.store.reading.wrappers import Observed, Retrying, says_revision

GATHER_SECONDS = 0.002
"""Rows that arrive within this time of each other are told together: one wake-up instead of many."""
FOR_ERRORS = 1 << 20
"""Bytes of the arena that payloads leave free."""
SLACK = 4
"""So small a share of the memory may lie unused, beyond what is allowed, before it is given back."""


@dataclass(frozen=True, kw_only=True)
class StoreOrders(Orders):
    """Rows of a store are wanted."""

    store: RemoteStore
    retry: Retry

    @property
    def name(self) -> str:
        return self.store.name

    def begun(self, connection: socket.socket, arena: Arena) -> "FetchLoop":
        return FetchLoop(connection, arena, self)


class FetchLoop:
    """Asks for rows as far as the window and the memory allow, puts them into the arena, tells where they lie."""

    def __init__(self, connection: socket.socket, arena: Arena, orders: StoreOrders) -> None:
        """Connects at once."""
        self._connection, self._arena = connection, arena
        self._extents, self._memory = Extents(arena.size, orders.live), orders.prefetch.memory
        self._room, self._pool = Room(self._memory), BlockPool(self._memory, self._extents.free)
        self._revision = ""  # that rows are to be of; nothing where that does not matter
        self._watch: RevisionWatch | None = None  # None: connections cannot say
        self._window, self._batch = Window(orders.prefetch, orders.batch), orders.batch
        self._tally = Tally()
        self._retried: Counter[str] = Counter()
        self._store = Retrying(Observed(orders.store, self._tally), orders.retry, self._noted)
        self._queue: list[tuple[int, str]] = []  # a heap: the oldest first
        self._flying: dict[int, asyncio.Task[None] | None] = {}  # None: it comes with a block
        self._reads_blocks = isinstance(orders.store, NeighbourStore)
        self._neighbours: NeighbourSession | None = None
        self._flight, self._per_block = BlockFlight(), 1
        self._blocks: set[asyncio.Task[None]] = set()  # kept: the loop refers to its tasks weakly
        self._held: dict[int, int] = {}  # offsets of what arrived and is not said to be taken, and its numbers
        self._taken: dict[int, int] = {}  # and of what is, until it is said to be free
        self._arrived: list[Arrived] = []
        self._outbox = Outbox(connection)
        self._telling: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._main = asyncio.create_task(self._run())  # kept: the loop refers to its tasks weakly

    def _noted(self, event: Event) -> None:
        """A request is made again."""
        self._tally(event)
        if isinstance(event, Retried) and event.key is not None:
            self._retried[event.key] += 1

    def told(self, kind: MessageKind, body: bytes) -> None:
        """Take in a message of the trainer."""
        if kind is MessageKind.ASK:
            wanted, group = wire.read_asks(body)
            for item in wanted:
                self._room.add(item[0])
                heapq.heappush(self._queue, item)
            self._room.group = max(self._room.group, group)
        elif kind is MessageKind.FREE:
            self._free(wire.read_numbers(body))
        elif kind is MessageKind.TAKEN:
            self._take(wire.read_numbers(body))
        elif kind is MessageKind.WAITS:
            self._window.waited()
        elif kind is MessageKind.DROP:
            self._drop(set(wire.read_numbers(body)))
        elif kind is MessageKind.REST:
            self._pool.forget()
        elif kind is MessageKind.WATCH:
            self._revision = body.decode("utf-8", "surrogateescape")
        self._wake.set()

    def _take(self, offsets: list[int]) -> None:
        taken = self._held.keys() & offsets
        self._taken.update((offset, self._held.pop(offset)) for offset in taken)
        self._window.taken(len(taken))

    def _free(self, offsets: list[int]) -> None:
        self._take(offsets)  # some were brought for nobody
        consumed = 0
        for offset in offsets:
            self._extents.free(offset)
            number = self._taken.pop(offset, None)  # others were brought by a fetcher before this one
            if number is not None:
                consumed += 1
                self._room.end(number)
        self._window.consumed(consumed)
        if self._extents.used + self._extents.touched > self._memory + self._memory // SLACK:
            for offset, size in self._extents.surplus():
                self._arena.give_back(offset, size)

    def _drop(self, numbers: set[int]) -> None:
        self._queue = [item for item in self._queue if item[0] not in numbers]
        heapq.heapify(self._queue)
        self._pool.drop(numbers)
        for number in numbers:
            self._room.end(number)
            if number in self._flying:
                task = self._flying.pop(number)
                if task is not None:
                    task.cancel()
                self._window.dropped()

    async def _run(self) -> None:
        """Connect, then ask as long as there is room."""
        try:
            session = await self._store.connect()
        except Exception as error:  # noqa: BLE001  (raised again in the training process)
            self._outbox.send(wire.facts(MessageKind.FATAL, failures.described(error)))
            return
        self._watch = RevisionWatch(session) if says_revision(session) else None
        if self._reads_blocks:
            self._neighbours = cast(NeighbourSession, session)
            self._tell()  # how much it would like to be asked for: until rows came it would be little
        while True:
            self._wake.clear()
            while self._queue:
                number, text = self._queue[0]
                key, block = unmarked(text)
                if not self._reads_blocks:
                    block = None
                rows = 1 if block is None else self._pool.rows(block)
                fits = not rows or self._room.allows(number, self._extents.used, rows, self._pool.others)
                has_room = bool(self._window.room) if block is None else not rows or self._flight.has_room
                if not self._may_ask(number, fits=fits and has_room):
                    break
                heapq.heappop(self._queue)
                self._ask(session, number, key, block if fits else None)
            await self._wake.wait()

    def _may_ask(self, number: int, *, fits: bool) -> bool:
        """True if this row may be asked for: ``fits`` says what memory and window allow; rows of the next group always
        are, or it could not be had.

        A group that is being worked on may have lost samples, and wait for the next one to be filled up.
        """
        coming, group = len(self._flying) + len(self._held), self._room.group
        is_short = coming < group and self._window.outstanding < 2 * group
        return is_short or self._room.owes(number) or fits

    def _ask(self, session: Session, number: int, key: str, block: NeighbourBlock | None) -> None:
        """Have a row brought: it was brought already, comes with its block, or by itself."""
        self._window.requested()
        self._room.asked(number)
        if block is None:
            self._flying[number] = asyncio.create_task(self._fetch(session, number, key))
        elif (kept := self._pool.take(block.place)) is not None:
            self._give(number, kept)
        else:
            self._flying[number] = None
            if self._pool.join(block, Waiting(number, key, block.place)):
                task = asyncio.create_task(self._fetch_block(session, key, block))
                self._blocks.add(task)
                task.add_done_callback(self._blocks.discard)

    async def _fetch_block(self, session: Session, key: str, block: NeighbourBlock) -> None:
        """Read a block: who waits for a sample of it is given it, and the others are kept."""
        began, rows = time.monotonic_ns(), dict[int, Row | None]()
        self._flight.asked()
        self._per_block = max(self._per_block, len(block.samples))
        try:
            found = await cast(NeighbourSession, session).around(key, block.before, block.after)
            rows = dict(zip(block.samples, found, strict=True))
        except (StoreUnavailable, StoreRefused) as error:
            for wanted in self._pool.end(block):
                self._fail(wanted.number, began, wanted.key, error)
            return
        except Exception:  # noqa: BLE001, S110  (whatever it is: each sample is asked for by itself, and says it then)
            pass
        finally:
            self._flight.ended((time.monotonic_ns() - began) / 1e9 if rows else None)
        for wanted in self._pool.end(block):
            row = rows.pop(wanted.place, None)
            if row is None:
                self._flying[wanted.number] = asyncio.create_task(self._fetch(session, wanted.number, wanted.key))
            else:
                self._place(wanted.number, began, row._replace(key=wanted.key), failed=False)
        self._keep([(place, row) for place, row in rows.items() if row is not None], began)
        self._wake.set()

    def _keep(self, rows: list[tuple[int, Row]], began: int) -> None:
        """Keep rows that were not asked for yet. What finds no room is read again when it is asked for."""
        took, labels = time.monotonic_ns() - began, [_label_of(row) for _, row in rows]
        sizes = [len(row.payload) + len(blob) for (_, row), (_, _, blob) in zip(rows, labels, strict=True)]
        total = sum(sizes)
        if not rows or not self._pool.makes_room(total) or self._extents.used + total > self._memory:
            return
        offsets = self._extents.allocate_each(sizes)
        if offsets is None:
            return
        for (place, row), (kind, label, blob), offset, size in zip(rows, labels, offsets, sizes, strict=True):
            self._arena.write(offset, row.payload, blob)
            self._pool.keep(place, Keeping(offset, kind, len(row.payload), label, size, began, took))

    def _give(self, number: int, kept: Keeping) -> None:
        """Tell of a row that is here: it took as long as its block, as far as the path is concerned."""
        self._room.landed(number)
        self._window.arrived(time.monotonic(), kept.took / 1e9, kept.size)
        place = Arrived(number, False, kept.label_kind, kept.offset, kept.size, kept.label, kept.began, kept.took, 0)
        self._tell_of(place)

    async def _fetch(self, session: Session, number: int, key: str) -> None:
        began = time.monotonic_ns()
        try:
            row = await session.get(key)
            told = self._watch is None or not self._revision or await self._watch.holds(self._revision)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (raised again where the sample is asked for)
            self._fail(number, began, key, error)
        else:
            self._place(number, began, row, failed=False, told=told)

    def _fail(self, number: int, began: int, key: str, error: Exception) -> None:
        """The reason is put where the row would be."""
        self._place(number, began, Row(key, json.dumps(failures.described(error)).encode(), None), failed=True)

    def _place(self, number: int, began: int, row: Row, *, failed: bool, told: bool = True) -> None:
        now = time.monotonic_ns()
        kind, label, blob = _label_of(row)
        size = len(row.payload)
        self._flying.pop(number, None)
        if failed:
            self._room.landed(number)
        else:
            self._window.arrived(now / 1e9, (now - began) / 1e9, size)
            if not self._room.keeps(number, size + len(blob), self._extents.used):
                self._window.dropped()
                heapq.heappush(self._queue, (number, row.key))
                self._wake.set()
                return
        fits = failed or self._extents.used + size + len(blob) <= self._arena.size - FOR_ERRORS
        offset = self._extents.allocate(size + len(blob)) if fits else None
        if offset is None and not failed:
            words = (
                f"{self._store.name}: the row {row.key!r} has {size} bytes and finds no room among the payloads "
                f"that are needed with it; use a larger Prefetch(memory=...)"
            )
            self._fail(number, began, row.key, StoreError(words, server=self._store.name, key=row.key))
            return
        assert offset is not None, "an error message finds room: payloads never fill the arena to its end"
        retries = min(31, self._retried.pop(row.key, 0))  # so many fit into a sample's flags in a trace
        self._arena.write(offset, row.payload, blob)
        self._tell_of(Arrived(number, failed, kind, offset, size, label, began, now - began, retries, told))

    def _tell_of(self, place: Arrived) -> None:
        self._held[place.offset] = place.number
        self._arrived.append(place)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        self._wake.set()

    def _tell(self) -> None:
        self._telling = None
        arrived, self._arrived = self._arrived, []
        # Asked for is a little more than may be under way: there is something to go on with until the next word comes.
        size = self._window.size
        ask_for = size + max(self._batch, size // 4)
        if self._reads_blocks:  # as far ahead as blocks may be under way, of which few rows are asked for at first
            ask_for = max(ask_for, self._flight.size * self._per_block // 2)
        counts = {
            **asdict(self._tally),
            "hedges": 0 if self._neighbours is None else self._neighbours.hedges(),
            "ask_for": ask_for,
            "window": size,
            "in_flight": len(self._flying),
        }
        self._outbox.send(wire.rows(arrived) + wire.facts(MessageKind.FACTS, counts))


def _label_of(row: Row) -> tuple[int, int, bytes]:
    """(kind, the label or its size, its bytes where it is no number)."""
    if isinstance(row.label, int):
        return wire.NUMBER_LABEL, row.label, b""
    return (wire.NO_LABEL, 0, b"") if row.label is None else (wire.BLOB_LABEL, len(row.label), row.label)
