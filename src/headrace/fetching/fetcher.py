"""The fetcher as the trainer sees it: a process of its own that has rows of a store brought into the arena.

It may be killed at any moment: what it had brought stays where it lies, what it had not is asked for again.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.core.errors import LoaderClosed, StoreError, StoreUnavailable
from headrace.core.stats import Network
from headrace.engine.step import held
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.fetcher_main import Orders
from headrace.fetching.fetcher_process import FetcherProcess
from headrace.fetching.wire import Arrived, MessageKind
from headrace.store import failures
from headrace.store.reading.interpreter import packed

Sink = Callable[[Arrived], None]
DEATHS_ALLOWED = 3
"""Fetchers that may end one after the other without having brought anything."""
ROOM, LEAST_ROOM = 8, 1 << 30
"""Address space of the arena, as a multiple of the memory it may use: free space lies between payloads, and two groups
may take more than the memory. Only what is written to takes any."""


class Fetcher:
    """A store's fetcher, over epochs. Used by one thread at a time; never waits."""

    def __init__(self, orders: Orders, before: Network = Network()) -> None:  # noqa: B008
        """Reserves the arena; the process starts when something is asked for, or with ``begin``.

        ``before``: what fetchers before this one came to.
        """
        self._orders, self._told, self.batch = orders, pickle.dumps(orders), orders.batch
        self.arena = Arena(max(ROOM * orders.prefetch.memory, LEAST_ROOM))
        self._process: FetcherProcess | None = None
        self._asked: dict[int, tuple[str, Sink]] = {}  # number -> key and who waits for it, until it arrives
        self._live: dict[int, tuple[int, Sink | None]] = {}  # offset -> bytes, and for whom, until it is freed
        self._watched = b""
        self._refused: StoreError | LoaderClosed | None = None
        self._waits = False
        self._deaths = 0
        self._numbers = 0
        self._group = 1
        self.network = self._before = before
        self.facts: dict[str, Any] = {}
        """The facts that the process told of itself last."""
        self.ask_for = 2 * self.batch
        """The number of rows the fetcher would like to have been asked for and not to have brought, at this moment."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def serves(self, orders: Orders) -> bool:
        """True if the fetcher does what these orders say: the store may be the same object, and have been changed."""
        return self._told == pickle.dumps(orders)

    def works(self) -> bool:
        """True unless the fetcher could not connect: whoever asks now may have better luck, or should hear of it
        anew.
        """
        try:
            self.pump()
        except StoreError:
            return False
        return True

    def begin(self) -> None:
        """Connect ahead of the first question."""
        process = self._start()
        with suppress(ConnectionError):  # one that ended at once is replaced when something is asked for
            process.send()

    def rest(self) -> bool:
        """Rest while nobody needs anything of the fetcher; the connections stay. False when it cannot be used
        again.
        """
        if isinstance(self._refused, LoaderClosed):
            self._refused = None  # whoever waited has heard of it
        if self._refused is not None:
            return False
        self.forget()
        if self._process is not None:
            self._process.outbox += wire.frame(MessageKind.REST, b"")
        if not self.works():
            return False
        self.arena.empty()
        return True

    def watch(self, revision: str | None) -> None:
        """Have each row say whether it is of this revision of the store; None: that does not matter."""
        self._watched = (revision or "").encode("utf-8", "surrogateescape")
        if self._process is not None:
            self._process.outbox += wire.frame(MessageKind.WATCH, self._watched)

    def number(self, count: int) -> int:
        """The first of ``count`` numbers that nobody had yet."""
        first = self._numbers
        self._numbers += count
        return first

    def ask(self, keys: Mapping[int, str], sink: Sink) -> None:
        """Have rows brought, each by a number; ``sink`` is given each of them once, by ``pump``."""
        if not keys:  # a cache has all of a group
            return
        self._group = max(self._group, len(keys))
        unasked = {number: key for number, key in keys.items() if number not in self._asked}
        self._asked.update((number, (key, sink)) for number, key in unasked.items())
        if self._process is None:
            self._start()
        else:
            self._process.outbox += wire.asks(unasked.items(), len(keys))

    def free(self, places: Iterable[Arrived]) -> None:
        """Free payloads that nobody needs any more: they count as consumed."""
        self._free([place.offset for place in places])

    def forget(self, by: Sink | None = None) -> None:
        """Forget what was asked for with this sink, or with any, which nobody needs any more: what came, and what
        did not.
        """
        self.drop([number for number, (_, sink) in self._asked.items() if by in (None, sink)])
        self._free([offset for offset, (_, sink) in self._live.items() if by in (None, sink)])

    def _free(self, offsets: list[int]) -> None:
        freed = [offset for offset in offsets if self._live.pop(offset, None) is not None]
        if freed and self._process is not None:
            self._process.outbox += wire.numbers(MessageKind.FREE, freed)
            self._waits = False

    def waits(self) -> None:
        """Tell that there is nothing to work on. It is told once for what is freed at once."""
        if self._process is not None and not self._waits:
            self._process.outbox += wire.frame(MessageKind.WAITS, b"")
            self._waits = True

    def drop(self, numbers: Iterable[int]) -> None:
        """Drop numbers that nobody waits for any more; what comes nevertheless is freed."""
        dropped = [number for number in numbers if self._asked.pop(number, None) is not None]
        if dropped and self._process is not None:
            self._process.outbox += wire.numbers(MessageKind.DROP, dropped)

    def taken(self, places: Iterable[Arrived]) -> None:
        """Note that these payloads are being worked on."""
        offsets = [place.offset for place in places]
        if offsets and self._process is not None:
            self._process.outbox += wire.numbers(MessageKind.TAKEN, offsets)

    def dismiss(self) -> None:
        """Have whoever waits for rows raise ``LoaderClosed``. May be called by any thread, at any time."""
        self._refused = LoaderClosed()

    def pump(self) -> None:
        """Send what is to be sent and hand out what has come, without waiting. Raises what the store refuses."""
        if self._refused is not None:
            raise self._refused
        if self._process is None:
            return
        try:
            self._process.send()
            for kind, body in self._process.received():
                self._take(kind, body)
        except ConnectionError:
            self._died()
        else:
            if self._asked and self._process.hangs():
                self._died(hung=True)

    def _take(self, kind: MessageKind, body: bytes) -> None:
        if kind is MessageKind.ROWS:
            for place in wire.read_rows(body):
                self._deaths = 0
                size = place.size + (place.label if place.label_kind == wire.BLOB_LABEL else 0)
                _, sink = self._asked.get(place.number, ("", None))
                self._live[place.offset] = size, sink
                if sink is None:
                    self.free([place])
                else:
                    sink(place)
                    self._asked.pop(place.number, None)
        elif kind is MessageKind.FACTS:
            facts = self.facts = json.loads(body)
            self.ask_for = int(facts["ask_for"])
            self.network = _added(self._before, facts)
        elif kind is MessageKind.FATAL:
            self._refused = failures.rebuilt(json.loads(body))
            raise self._refused

    def waited_for(self) -> tuple[int, int]:
        """(descriptor, events of ``poll``) to be woken by; -1 while there is no process, or it says nothing more."""
        process = self._process if self._refused is None else None
        return (-1, 0) if process is None else process.waited_for()

    def _start(self) -> FetcherProcess:
        with held():
            orders = replace(self._orders, live=[(offset, size) for offset, (size, _) in self._live.items()])
            told = packed(orders, orders.name)
            asked = ((number, key) for number, (key, _) in self._asked.items())
            watched = wire.frame(MessageKind.WATCH, self._watched)
            first = wire.frame(MessageKind.OPEN, told) + watched + wire.asks(asked, self._group)
            self._process = FetcherProcess(self.arena, first)
        return self._process

    def _died(self, *, hung: bool = False) -> None:
        """The process is gone, or as good as. Raises where one after the other dies."""
        if hung and self._process is not None:
            self._process.kill()
        code = self._end()
        self._deaths += 1
        if self._deaths > DEATHS_ALLOWED:
            server = self._orders.name
            msg = f"{server}: the process that reads from it ended {self._deaths} times without bringing a row, " + (
                "the last time because it hung and was killed" if hung else f"the last time with exit code {code}"
            )
            self._refused = StoreUnavailable(msg, server=server)
            raise self._refused
        self._replace()

    def _replace(self) -> None:
        """Replace the process by one that is told what is needed: what is held here of what was brought, and what
        was not.
        """
        self._end()
        self._before = replace(self.network, restarts=self.network.restarts + 1, in_flight=0)
        self.network = self._before
        self._start()

    def _end(self) -> int | None:
        """The exit code of the process, if there was one."""
        with held():
            code = None if self._process is None else self._process.end()
            self._process = None
        return code

    def close(self) -> None:
        """End the process and give the memory back; idempotent."""
        with held():
            self._end()
            self.arena.close()


def _added(before: Network, facts: dict[str, Any]) -> Network:
    """The figures that a process reports, added to what was done before it."""
    sums = ("rows", "bytes", "seconds", "retries", "hedges", "failures", "connections")
    added = {name: getattr(before, name) + facts[name] for name in sums if name in facts}
    return replace(before, **added, in_flight=facts["in_flight"], window=facts["window"])
