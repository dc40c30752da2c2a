"""Trying again: with growing, uneven pauses, within a budget, each time for so long, and only where it can help."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace.core.errors import StoreError, StoreUnavailable
from headrace.core.options import Retry
from headrace.store.reading.events import Observer, Retried

IN_FLIGHT = 32
"""Requests of a writer at once."""

T = TypeVar("T")


class Attempt:
    """Attempt under way, in the task that makes it."""

    __slots__ = ("_cancelling", "_task", "due", "expired")

    def __init__(self, task: asyncio.Task[object], due: float) -> None:
        self._task: asyncio.Task[object] | None = task
        self._cancelling = task.cancelling()
        self.due = due
        self.expired = False

    @property
    def is_over(self) -> bool:
        return self._task is None

    def expire(self) -> None:
        """Cancel the attempt because it took too long."""
        if self._task is not None:
            self.expired = True
            self._task.cancel()

    def end(self) -> bool:
        """Mark the attempt as over. True if a cancellation that came of it was nobody else's but its own."""
        task, self._task = self._task, None
        return self.expired and task is not None and task.uncancel() <= self._cancelling


class Patience:
    """A time limit of so many seconds for each attempt: as all may take equally long, the first to begin is the
    first to be over due.

    ``asyncio.timeout`` for each was a sixth of the fetcher's time under a profiler. Used in one event loop at a time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attempts: deque[Attempt] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Attempt:
        """The current task makes an attempt from now on: whoever begins one ends it."""
        task = asyncio.current_task()
        assert task is not None, "attempts are made in tasks"
        loop = task.get_loop()
        if loop is not self._loop:  # what was left of another one went with it
            self._loop, self._timer = loop, None
            self._attempts.clear()
        attempt = Attempt(task, loop.time() + self.seconds)
        attempts = self._attempts
        while attempts and attempts[0].is_over:
            attempts.popleft()
        attempts.append(attempt)
        if self._timer is None:
            self._timer = loop.call_at(attempt.due, self._look, loop)
        return attempt

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look whose time is over: that of several attempts may be."""
        attempts, now = self._attempts, loop.time()
        while attempts and (attempts[0].is_over or attempts[0].due <= now):
            attempts.popleft().expire()
        self._timer = loop.call_at(attempts[0].due, self._look, loop) if attempts else None


class Perseverance:
    """Repetition of a store's requests, as ``retry`` says. ``observer`` is told of every repetition.

    Used in one event loop at a time.
    """

    def __init__(self, name: str, retry: Retry, observer: Observer | None) -> None:
        self._name = name
        self._retry = retry
        self._observer = observer
        self._patience = Patience(retry.patience)

    async def run(self, key: str | None, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of an attempt. It must be idempotent: one that seems to have failed may have been carried out.

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
                timed.end()  # a second time where it expired, which does nothing
            # Uneven: whoever failed at one moment, with many others, must not come back together with them.
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
