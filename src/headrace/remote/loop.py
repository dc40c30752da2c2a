"""The fetching process where samples come from other hosts: asked for in groups, read into the arena, told one by one.

It is told the same things as a loop that reads a store, and says the same: a sample made elsewhere is an arrival.
"""

import asyncio
import heapq
import socket
import time
from collections.abc import Iterable
from typing import Any

from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.extents import Extents
from headrace.fetching.outbox import Outbox
from headrace.fetching.wire import NUMBER_LABEL, Arrived, MessageKind
from headrace.remote import messages
from headrace.remote.crew import Crew
from headrace.remote.fetch_orders import RemoteOrders
from headrace.remote.lane_stream import Table
from headrace.remote.messages import EntryKind, GroupKey, Head, Request
from headrace.remote.rules.owing import Owing

GATHER_SECONDS = 0.002
LOOK_SECONDS = 0.25
SILENT_SECONDS = 10.0
"""A lane that owes samples and has said nothing for so long has hung, or its host has. It says something four times a
second, unless one call of the dataset keeps the interpreter's lock."""
UNIT_SECONDS = 0.05
"""A lane is asked for about so much work at once."""
SMOOTH = 8


class RemoteLoop:
    """Asks lanes for samples as far as the memory allows, and tells where they lie."""

    def __init__(self, connection: socket.socket, arena: Arena, orders: RemoteOrders) -> None:
        """Joins the cluster at once, in the background."""
        self._connection, self._arena, self._memory = connection, arena, orders.prefetch.memory
        self._extents = Extents(arena.size, orders.live)
        self._owing: Owing[int] = Owing()
        self._keys: dict[int, GroupKey] = {}  # of samples that somebody wants and that have not come
        self._oldest: list[int] = []  # a heap of numbers that are not freed, and of some that are
        self._unfreed: set[int] = set()
        self._held: dict[int, int] = {}  # offset -> number, of what has come
        self._places: dict[int, list[int]] = {}  # lane -> offsets of the answer that is being read
        self._asked_at: dict[int, int] = {}
        self._group = 1
        self._made, self._size, self._trip = 0.0, 0.0, 0.0  # seconds and bytes of a sample, seconds of the way
        self._sent: dict[tuple[int, int], int] = {}
        self._counts = {"rows": 0, "bytes": 0, "seconds": 0.0, "retries": 0, "failures": 0, "connections": 0}
        self._by_node: dict[str, int] = {}
        self._news: list[str] = []
        self._refused = self._gone = ""
        self._arrived: list[Arrived] = []
        self._outbox = Outbox(connection)
        self._telling: asyncio.TimerHandle | None = None
        self._crew = Crew(orders.place, orders.cpus, orders.bundle, orders.own, self)
        self._main = asyncio.create_task(self._crew.run())  # kept: the loop refers to its tasks weakly
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def told(self, kind: MessageKind, body: bytes) -> None:
        """Take in a message of the trainer."""
        if kind is MessageKind.ASK:
            wanted, group = wire.read_asks(body)
            self._group = max(self._group, group)
            self._want([(number, GroupKey.of(text)) for number, text in wanted])
        elif kind is MessageKind.FREE:
            self._free(wire.read_numbers(body))
        elif kind is MessageKind.DROP:
            self._drop(wire.read_numbers(body))
        self._ask()

    def _want(self, wanted: list[tuple[int, GroupKey]]) -> None:
        now = time.monotonic_ns()
        for number, key in wanted:
            self._keys[number] = key
            self._asked_at[number] = now
            self._unfreed.add(number)
            heapq.heappush(self._oldest, number)
        if self._gone:
            self._give_back(self._keys, self._gone)
            return
        alike: dict[tuple[int, int], list[int]] = {}
        for number, key in wanted:
            alike.setdefault(key[:2], []).append(number)
        unit = self._unit()
        for numbers in alike.values():
            parts = -(-len(numbers) // unit)  # of one size, as far as that goes
            for part in range(parts):
                self._owing.want(numbers[len(numbers) * part // parts : len(numbers) * (part + 1) // parts])

    def _unit(self) -> int:
        """Samples that a lane is asked for at once, at most."""
        return 4 if not self._made else max(1, min(self._group, round(UNIT_SECONDS / self._made)))

    def _free(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._extents.free(offset)
            number = self._held.pop(offset, None)
            if number is not None:
                self._unfreed.discard(number)
        if self._extents.used + self._extents.touched > self._memory + self._memory // 4:
            for offset, size in self._extents.surplus():
                self._arena.give_back(offset, size)
        self._resume()

    def _resume(self) -> None:
        for link in list(self._crew.links.values()):
            if link.is_paused:
                link.resume()

    def _drop(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        for number in gone:
            self._keys.pop(number, None)
            self._asked_at.pop(number, None)
            self._unfreed.discard(number)
        self._owing.forget(gone)

    def _is_first(self, number: int) -> bool:
        """True if the sample is of the two groups that are needed first: those are had whatever lies in the arena."""
        while self._oldest and self._oldest[0] not in self._unfreed:
            heapq.heappop(self._oldest)
        return not self._oldest or number < self._oldest[0] + 2 * self._group

    def _ask(self) -> None:
        """Have idle lanes make what waits, each the oldest group, as far as there is room for it."""
        now = time.monotonic()
        lanes = list(self._crew.links.items())
        for depth in (1, 2):
            for lane, link in lanes:
                head = self._owing.head
                if not head:
                    return
                expected = (self._owing.asked + len(head)) * self._size
                if self._extents.used + expected > self._memory and not self._is_first(min(head)):
                    return
                asked = self._owing.next(lane, now, depth)
                if asked is None:
                    continue
                keys = [self._keys[number] for number in asked.samples]
                self._sent[lane, asked.number] = time.monotonic_ns()
                link.send(messages.request(asked.number, Request.of(keys)))

    def ready(self, lane: int) -> None:
        """A lane is there."""
        self._owing.join(lane, time.monotonic())
        self._counts["connections"] += 1
        self._ask()
        self._tell_soon()

    def heard(self, lane: int) -> None:
        """Note that something came of a lane."""
        self._owing.heard(lane)

    def room(self, lane: int, head: Head, table: Table) -> list[memoryview] | None:
        """Pieces of the arena for the samples of an answer; None while there is no memory for them."""
        samples = self._owing.owed(lane, head.number)
        if samples is None:  # nobody wants them any more
            return [memoryview(bytearray(size)) for _, size in table]
        if len(samples) != len(table):
            raise ValueError("an answer has other samples than were asked for")
        total = sum(size for _, size in table)
        if self._extents.used + total > self._memory and not self._is_first(min(samples)):
            return None
        offsets: list[int] = []
        for _, size in table:
            offset = self._extents.allocate(size)
            if offset is None:
                for each in offsets:
                    self._extents.free(each)
                if not self._held:
                    raise ValueError(f"an answer of {total} bytes finds no room; use a larger Prefetch(memory=...)")
                return None
            offsets.append(offset)
        self._places[lane] = offsets
        return [self._arena.piece(offset, size) for offset, (_, size) in zip(offsets, table, strict=True)]

    def came(self, lane: int, head: Head, table: Table) -> None:
        """Note that an answer's entries lie in the arena; whoever waits is told."""
        offsets = self._places.pop(lane, [])
        samples = self._owing.arrived(lane, head.number) or ()
        sent = self._sent.pop((lane, head.number), None)
        now = time.monotonic_ns()
        node = self._crew.node(lane)
        if table:
            each = head.took / 1e9 / len(table)
            self._made += (each - self._made) / SMOOTH if self._made else each
            mean = sum(size for _, size in table) / len(table)
            self._size += (mean - self._size) / SMOOTH if self._size else mean
            if sent is not None:
                trip = max(0.0, (now - sent - 2 * head.took) / 1e9)  # behind another one, which takes as long
                self._trip += (trip - self._trip) / SMOOTH
        unwanted = []
        for number, offset, (kind, size) in zip(samples, offsets, table, strict=False):
            if self._keys.pop(number, None) is None:
                unwanted.append(offset)
                continue
            self._place(number, offset, size, kind, now)
            self._by_node[node] = self._by_node.get(node, 0) + 1
        for offset in [*unwanted, *offsets[len(samples) :]]:
            self._extents.free(offset)
        self._ask()

    def _place(self, number: int, offset: int, size: int, kind: EntryKind, now: int) -> None:
        began = self._asked_at.pop(number, now)
        self._held[offset] = number
        took = now - began
        self._counts["rows"] += 1
        self._counts["bytes"] += size
        self._counts["seconds"] += took / 1e9
        self._arrived.append(Arrived(number, False, NUMBER_LABEL, offset, size, int(kind), began, took, 0))
        self._tell_soon()

    def lost(self, lane: int, why: str) -> None:
        """Note that a lane was lost: what it owed is asked of others."""
        for offset in self._places.pop(lane, []):
            self._extents.free(offset)
        for key in [key for key in self._sent if key[0] == lane]:
            del self._sent[key]
        self._counts["connections"] -= 1
        self._counts["retries"] += 1
        self._give_back(self._owing.leave(lane), f"it ended its process twice, the last time: {why}")
        self._ask()
        self._tell_soon()

    def refused(self, why: str) -> None:
        """Note a refusal: what is made there would be something else, and the trainer says so."""
        self._refused = why
        self._tell_soon()

    def gone(self, why: str) -> None:
        """Note that nobody will come: all that is owed is made beside the trainer."""
        self._gone = why
        self._owing.give_back()
        self._give_back(list(self._keys), why)
        self._tell_soon()

    def news(self, what: str) -> None:
        """Pass on news, which is said once."""
        self._news.append(what)
        self._tell_soon()

    def _give_back(self, numbers: Iterable[int], why: str) -> None:
        """Samples that are not made elsewhere: the reason is put where they would be."""
        words, now = why.encode("utf-8", "replace")[:4096], time.monotonic_ns()
        for number in list(numbers):
            if self._keys.pop(number, None) is None:
                continue
            offset = self._extents.allocate(len(words))
            assert offset is not None, "a few words find room: payloads never fill the arena to its end"
            self._arena.write(offset, words)
            self._counts["failures"] += 1
            self._place(number, offset, len(words), EntryKind.FAILED, now)

    def _look(self) -> None:
        """Lanes that have fallen silent are given up. Memory may be there for what was held back."""
        listens = [lane for lane, link in self._crew.links.items() if link.is_reading]
        for lane in self._owing.silent(time.monotonic(), SILENT_SECONDS, listens):
            self._crew.close(lane, f"it said nothing for {SILENT_SECONDS:g} s")
        self._resume()
        self._ask()
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        arrived, self._arrived = self._arrived, []
        lanes = len(self._crew.links)
        facts: dict[str, Any] = {
            **self._counts,
            "window": 0,
            "in_flight": len(self._keys),
            "ask_for": 0,
            "remote": {
                "lanes": lanes,
                "made": self._made,
                "unit": self._unit(),
                "trip": self._trip,
                "size": self._size,
                "nodes": self._by_node,
                "carried": self._crew.carried,
                "refused": self._refused,
                "gone": self._gone,
                "news": self._news,
            },
        }
        self._outbox.send(wire.rows(arrived) + wire.facts(MessageKind.FACTS, facts))
