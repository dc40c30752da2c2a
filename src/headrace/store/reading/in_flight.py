"""The fetching loop: a window of requests in flight, rows in the order in which they come."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from headrace.core.errors import StoreError
from headrace.store.base import Lost, Row, Session
from headrace.store.reading.window import Window


async def arrivals(
    session: Session,
    keys: Iterable[str],
    window: Window,
    *,
    in_order: bool = False,
    finish: Callable[[Row], Awaitable[Any]] | None = None,
) -> AsyncGenerator[Any, None]:
    """Each key's row, or why there is none, in order of completion, or in that of the keys.

    As many requests are in flight as the window has room for; it is told of every arrival and of every row taken, and
    a trainer that takes none stops new requests. ``keys`` is read as there is room, and must not block. A key that
    comes twice is fetched twice. ``finish`` turns a row into what is to come out, several at once. Closing the
    iterator cancels what is in flight.
    """
    waiting = enumerate(keys)
    ready: dict[int, Any] = {}
    crashed: list[Exception] = []
    changed = asyncio.Event()
    running: set[asyncio.Task[None]] = set()
    exhausted, started, following = False, 0, 0

    async def one(number: int, key: str) -> None:
        began = time.monotonic()
        try:
            row = await session.get(key)
            now = time.monotonic()
            window.arrived(now, now - began, len(row.payload))
            ready[number] = row if finish is None else await finish(row)
        except StoreError as error:
            ready[number] = Lost(key, error)
        except Exception as error:  # noqa: BLE001  (raised by the loop below, in the trainer)
            crashed.append(error)
        changed.set()

    try:
        while True:
            while not exhausted and window.room:
                try:
                    number, key = next(waiting)
                except StopIteration:
                    exhausted = True
                    break
                started += 1
                window.requested()
                task = asyncio.create_task(one(number, key))
                running.add(task)
                task.add_done_callback(running.discard)
            first = following if in_order else next(iter(ready), -1)  # a dict keeps the order of arrival
            if crashed:
                raise crashed[0]
            if first in ready:
                fetched = ready.pop(first)
                following += 1
                window.consumed()
                yield fetched
            elif exhausted and following == started:
                return
            else:
                changed.clear()  # nothing can have come since it was looked: there was no await in between
                await changed.wait()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
