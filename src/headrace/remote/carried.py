"""A lane that is spoken to through Ray, whose results carry its answers, where no stream may be, or connects."""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.remote import messages
from headrace.remote.lane_stream import GroupReader, Table
from headrace.remote.messages import Head, Subject

PING_SECONDS = 1.0
Exchange = Callable[[int, bytes], Awaitable[bytes]]
Ping = Callable[[], Awaitable[None]]


class Carried:
    """A lane that Ray carries, used as a ``Stream`` is."""

    def __init__(self, lane: int, number: int, exchange: Exchange, ping: Ping, reader: GroupReader) -> None:
        """``number``: of the lane on its host. ``exchange``: a request in, an answer out. ``ping``: of its host."""
        self._lane, self._number, self._exchange, self._ping, self._reader = lane, number, exchange, ping, reader
        self._held: list[tuple[Head, Table, memoryview]] = []
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_open = True
        self._tasks = [asyncio.create_task(self._speak()), asyncio.create_task(self._look())]
        asyncio.get_running_loop().call_soon(self._ready)

    def _ready(self) -> None:
        if self._is_open:
            self._reader.ready(self._lane)

    @property
    def is_reading(self) -> bool:
        """True if anything that came would be noticed."""
        return self._is_open and not self._held

    @property
    def is_paused(self) -> bool:
        """True if an answer waits for room."""
        return bool(self._held)

    def send(self, data: bytes) -> None:
        """Does not wait."""
        self._requests.put_nowait(data)

    async def _look(self) -> None:
        while True:
            try:
                await self._ping()
            except Exception as error:  # noqa: BLE001  (Ray's, of many kinds)
                self._lose(str(error))
                return
            self._reader.heard(self._lane)
            await asyncio.sleep(PING_SECONDS)

    async def _speak(self) -> None:
        """Send one request after the other, so a lane owes one answer to Ray at any moment."""
        try:
            while True:
                self._take(memoryview(await self._exchange(self._number, await self._requests.get())))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (Ray's, of many kinds, and an answer that is none)
            self._lose(f"{type(error).__name__}: {error}")

    def _take(self, answer: memoryview) -> None:
        self._reader.heard(self._lane)
        head = Head.read(answer[: messages.HEAD.size])
        begin = messages.HEAD.size + messages.table_size(head.samples)
        if head.kind != Subject.ANSWER:
            self.close()
            self._reader.refused(self._lane, bytes(answer[messages.HEAD.size :]).decode("utf-8", "replace"))
            return
        table = messages.read_table(bytes(answer[messages.HEAD.size : begin]), head)
        self._held.append((head, table, answer[begin:]))
        self.resume()

    def resume(self) -> None:
        """Ask again where the entries are to lie."""
        while self._held:
            head, table, entries = self._held[0]
            views = self._reader.room(self._lane, head, table)
            if views is None:
                return
            self._held.pop(0)
            for view in views:
                view[:] = entries[: len(view)]
                entries = entries[len(view) :]
            self._reader.came(self._lane, head, table)

    def close(self) -> None:
        """Ends it; may be called twice. The reader is not told."""
        self._is_open = False
        self._held.clear()
        for task in self._tasks:
            task.cancel()

    def _lose(self, why: str) -> None:
        if self._is_open:
            self.close()
            self._reader.lost(self._lane, why)
