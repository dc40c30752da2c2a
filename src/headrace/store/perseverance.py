"""Trying again: with growing, uneven pauses, within a budget, and only where it can help."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace.core.errors import StoreError, StoreUnavailable
from headrace.core.options import Retry
from headrace.store.events import Observer, Retried
from headrace.store.patience import Patience

IN_FLIGHT = 32
"""Requests of a writer at once."""

T = TypeVar("T")


class Perseverance:
    """One store's requests, each made again as ``retry`` says. ``observer`` is told of every repetition.

    Used in one event loop at a time.
    """

    def __init__(self, name: str, retry: Retry, observer: Observer | None) -> None:
        self._name = name
        self._retry = retry
        self._observer = observer
        self._patience = Patience(retry.patience)

    async def run(self, key: str | None, attempt: Callable[[], Awaitable[T]]) -> T:
        """What an attempt returns. It must be idempotent: one that seems to have failed may have been carried out.

        Only ``StoreUnavailable`` is worth another attempt; the last one's comes out, with what was tried.
        """
        retry, began = self._retry, time.monotonic()
        for number in range(1, retry.attempts + 1):
            timed = self._patience.begin()
            try:
                return await attempt()
            except asyncio.CancelledError as error:
                if not timed.end():
                    raise
                message = f"{self._name}: no answer within {retry.patience:g} s"
                failure: StoreError = StoreUnavailable(message, server=self._name, key=key)
                failure.__cause__ = error
            except StoreUnavailable as error:
                failure = error
            finally:
                timed.end()
            pause = random.uniform(0.5, 1.0) * min(retry.ceiling, retry.first * 2 ** (number - 1))
            spent = time.monotonic() - began
            if number == retry.attempts or spent + pause > retry.budget:
                tried = f"tried {number} time{'s' if number > 1 else ''} in {spent:.1f} s"
                raise StoreUnavailable(f"{failure} ({tried})", server=failure.server, key=key) from failure
            if self._observer is not None:
                self._observer(Retried(key, number, pause, failure))
            await asyncio.sleep(pause)
        raise AssertionError("a retry allows at least one attempt")


async def each(work: Callable[[Any], Awaitable[T]], items: Sequence[Any], at_once: int = IN_FLIGHT) -> list[T]:
    """Work on all of them, some at once, results in their order; the first error ends the rest."""
    turns = asyncio.Semaphore(at_once)

    async def one(item: Any) -> T:
        async with turns:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
