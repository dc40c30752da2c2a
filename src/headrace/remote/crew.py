"""The hosts that make samples, and a lane to each of their CPUs: started, watched, replaced, and ended."""

import asyncio
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from headrace.core.errors import RemoteError
from headrace.remote import messages
from headrace.remote.carried import Carried
from headrace.remote.lane_stream import GroupStream, Table, opened
from headrace.remote.messages import Head
from headrace.remote.ray_driver import Driver, Started, joined
from headrace.remote.rules.placement import Place, Placement

JOIN_SECONDS = 60.0
CONNECT_SECONDS = 5.0
HELLO_SECONDS = 10.0
"""So long a lane may take to say that it is there, once its host has made something."""
INIT_SECONDS = 120.0
"""And before: ``worker_init_fn`` may read much."""
FAILURES = 3
"""Hosts in one place, or lanes of one host, that may end one after the other without having made anything."""
PAUSE_SECONDS = 2.0


class CrewLink(Protocol):
    """A way to a lane."""

    @property
    def is_reading(self) -> bool: ...

    @property
    def is_paused(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Boss(Protocol):
    """The object that has the crew work. Called by the event loop; must not wait."""

    def ready(self, lane: int) -> None:
        """A lane is there."""

    def heard(self, lane: int) -> None:
        """Note that something came of a lane."""

    def room(self, lane: int, head: Head, table: Table) -> list[memoryview] | None:
        """The memory in which the entries of an answer are to lie; see ``GroupReader``."""

    def came(self, lane: int, head: Head, table: Table) -> None:
        """Note that the entries lie in the memory that ``room`` gave."""

    def lost(self, lane: int, why: str) -> None:
        """A lane is there no more."""

    def refused(self, why: str) -> None:
        """Samples made there would not be those made here, or cannot be made there at all."""

    def gone(self, why: str) -> None:
        """Note that nobody is there any more, and nobody will come."""

    def news(self, what: str) -> None:
        """Note something the user may want to know."""


@dataclass
class CrewHost:
    """A process that forks lanes."""

    started: Started
    place: Placement
    carried: bool
    """Whether Ray carries what it makes."""
    has_streamed: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""

    def end(self, why: str) -> None:
        """Note that the host is of no more use."""
        if not self.is_over.is_set():
            self.why = why
            self.is_over.set()


class Crew:
    """All hosts of one run. Belongs to the event loop."""

    def __init__(self, place: Place, cpus: int, bundle: bytes, own: int, boss: Boss) -> None:
        """``own``: lanes beside the trainer. Nothing is started yet."""
        self._place, self._cpus, self._bundle, self._own, self._boss = place, cpus, bundle, own, boss
        self._token = messages.new_token()
        self._numbers = itertools.count()
        self._hosts: dict[int, CrewHost] = {}  # by lane
        self._watched: dict[int, _WatchedHost] = {}
        self.links: dict[int, CrewLink] = {}
        """Of lanes that are ready."""
        self.carried = False
        """Whether any of them is spoken to through Ray."""

    def node(self, lane: int) -> str:
        """The address of the node that a lane is on."""
        host = self._hosts.get(lane)
        return "" if host is None else host.started.address

    async def run(self) -> None:
        """Run until nobody is left. Raises nothing."""
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                driver = await joined(self._place)
            bundle = await asyncio.to_thread(driver.hold, self._bundle)
            places = driver.placed(self._cpus)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            self._boss.gone(f"the Ray cluster at {self._place.address} did not take this process in {JOIN_SECONDS:g} s")
            return
        except Exception as error:  # noqa: BLE001  (Ray's, of many kinds)
            self._boss.gone(str(error))
            return
        firsts = itertools.accumulate((place.lanes for place in places), initial=self._own)
        begun = [
            asyncio.create_task(self._staff(driver, place, bundle, first))
            for place, first in zip(places, firsts, strict=False)
        ]
        whys = await asyncio.gather(*begun)
        self._boss.gone("; ".join(sorted({why for why in whys if why})) or "no host is left")

    async def _staff(self, driver: Driver, place: Placement, bundle: Any, first: int) -> str:
        """Start one host after the other in one place, while they make something; returns why there are no more."""
        failures = 0
        while True:
            made = _Count()
            try:
                started = await driver.start(place, bundle, self._token, first, self._own + self._cpus)
            except RemoteError as error:
                self._boss.refused(str(error))
                return str(error)
            except Exception as error:  # noqa: BLE001  (Ray's, of many kinds)
                why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            else:
                why = await self._worked(driver, started, place, made)
            failures = 0 if made.count else failures + 1
            if failures >= FAILURES:
                return why
            self._boss.news(f"a host that makes samples ended ({why}); another is started")
            await asyncio.sleep(PAUSE_SECONDS * failures)

    async def _worked(self, driver: Driver, started: Started, place: Placement, made: "_Count") -> str:
        host = CrewHost(started, place, driver.is_guarded)
        self.carried = self.carried or host.carried
        lanes = [asyncio.create_task(self._lane(driver, host, number, made)) for number in range(place.lanes)]
        try:
            await host.is_over.wait()
        finally:
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            driver.end(started.actor)
        return f"on {started.address}: {host.why}"

    async def _lane(self, driver: Driver, host: CrewHost, number: int, made: "_Count") -> None:
        """Run one lane after the other, for one CPU of a host."""
        failures = 0
        while failures < FAILURES:
            lane = next(self._numbers)
            watch = _WatchedHost(self._boss, made)
            self._hosts[lane] = host
            try:
                link = await self._linked(driver, host, lane, number, watch)
            except (OSError, TimeoutError) as error:
                del self._hosts[lane]
                host.end(f"no lane answers ({type(error).__name__})")
                return
            self._watched[lane] = watch
            is_ready = False
            try:
                async with asyncio.timeout(HELLO_SECONDS if made.count else INIT_SECONDS):
                    await watch.is_ready.wait()
                if not watch.is_over.is_set():
                    is_ready = True
                    self.links[lane] = link
                    self._boss.ready(lane)
                    await watch.is_over.wait()
            except TimeoutError:
                host.end("a lane does not begin")
                return
            finally:
                link.close()
                self.links.pop(lane, None)
                del self._watched[lane]
                if is_ready:
                    self._boss.lost(lane, watch.why)
                del self._hosts[lane]
            if watch.is_refused:
                self._boss.refused(f"{host.started.address}: {watch.why}")
                host.end(watch.why)
                return
            failures = 0 if watch.made else failures + 1
        host.end("its lanes end, one after the other")

    async def _linked(self, driver: Driver, host: CrewHost, lane: int, number: int, watch: "_WatchedHost") -> CrewLink:
        started = host.started
        if not host.carried:
            try:
                connection = await opened(started.address, started.port, self._token, CONNECT_SECONDS)
            except OSError:  # a time that is over is one, too
                if host.has_streamed:
                    raise
                host.carried = self.carried = True
                self._boss.news(
                    f"no stream reaches {started.address}:{started.port}, so Ray carries what is made there"
                )
            else:
                host.has_streamed = True
                return GroupStream(lane, connection, watch)
        exchange = partial(driver.exchange, started.actor)
        return Carried(lane, number, exchange, partial(driver.ping, started.actor), watch)

    def close(self, lane: int, why: str) -> None:
        """A lane has fallen silent: it is given up, and another is asked for, which shows whether its host lives."""
        if lane in self.links:
            self.links[lane].close()
            self._watched[lane].lost(lane, why)


@dataclass
class _Count:
    """Answers of all lanes of a host."""

    count: int = 0


class _WatchedHost:
    """The record of what one lane has come to; everything else is passed on."""

    def __init__(self, boss: Boss, made: _Count) -> None:
        self._boss, self._all = boss, made
        self.is_ready, self.is_over = asyncio.Event(), asyncio.Event()
        self.is_refused = False
        self.why = "it was ended"
        self.made = 0

    def ready(self, lane: int) -> None:
        self.is_ready.set()

    def heard(self, lane: int) -> None:
        self._boss.heard(lane)

    def room(self, lane: int, head: Head, table: Table) -> list[memoryview] | None:
        return self._boss.room(lane, head, table)

    def came(self, lane: int, head: Head, table: Table) -> None:
        self.made += 1
        self._all.count += 1
        self._boss.came(lane, head, table)

    def lost(self, lane: int, why: str) -> None:
        self.why = why
        self.is_over.set()
        self.is_ready.set()

    def refused(self, lane: int, why: str) -> None:
        self.is_refused = True
        self.lost(lane, why)
