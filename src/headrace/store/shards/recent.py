"""The most recently used tables of offsets, and blocks that many samples lie in, within a bound of bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple


class Unpacked(NamedTuple):
    """A value, and the bytes that it takes."""

    value: Any
    size: int


class Recent:
    """Values by key; the one that was not used for the longest time goes first. Threads may use it together."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held: dict[Hashable, Unpacked] = {}
        self._size = 0

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        found = self._held.pop(key, None)  # each step is one of the interpreter's: a thread between them makes it anew
        if found is None:
            return None
        self._held[key] = found
        return found.value

    def put(self, key: Hashable, made: Unpacked) -> None:
        """Keeps it, unless it alone is too large."""
        if made.size > self._budget:
            return
        self._held[key] = made
        self._size += made.size
        while self._size > self._budget:
            oldest = self._held.pop(next(iter(tuple(self._held)), None), None)
            if oldest is None:
                self._size = 0
                break
            self._size -= oldest.size


class Shared:
    """Values that many tasks wait for and one makes, in one event loop. Whoever stops waiting disturbs nobody."""

    def __init__(self, budget: int) -> None:
        """``budget``: bytes that are held, and as many again that are being made, or one value where it is larger."""
        self._recent, self._budget = Recent(budget), budget
        self._making: dict[Hashable, asyncio.Task[Any]] = {}
        self._being_made = 0
        self._room = asyncio.Condition()

    async def get(self, key: Hashable, size: int, make: Callable[[], Awaitable[Unpacked]]) -> Any:
        """The value; ``make`` is called where nobody does already. ``size``: about what making it takes."""
        found = self._recent.get(key)
        if found is not None:
            return found
        if key not in self._making:
            self._making[key] = asyncio.create_task(self._make(key, size, make))
            self._making[key].add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(self._making[key])

    async def close(self) -> None:
        """Ends what is being made."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, key: Hashable, size: int, make: Callable[[], Awaitable[Unpacked]]) -> Any:
        async with self._room:
            await self._room.wait_for(lambda: not self._being_made or self._being_made + size <= self._budget)
            self._being_made += size
        try:
            made = await make()
        finally:
            async with self._room:
                self._being_made -= size
                self._room.notify_all()
        self._recent.put(key, made)
        return made.value

    def _made(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        self._making.pop(key, None)
        if not task.cancelled():
            task.exception()  # those who wait have it; nobody may
