"""Second requests for those that are late: when to make one, and who is listened to.

One request in a hundred that takes seconds holds up everything that waits in order behind it. One that has not been
answered when nearly all others would have been is made again; the first answer wins, and the other is given up.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

QUANTILE, FACTOR = 0.95, 1.5
"""A request is late after so many times what so large a part of the others took at most."""
FIRST_S, KNOWN = 1.0, 64
"""Seconds after which one is late as long as fewer than so many were answered."""
LAST, EVERY = 256, 16
"""Answers that count, and how often they are looked at."""
SHARE = 0.04
"""Bytes asked for a second time, at most, as a part of those that were answered."""


class Hedge:
    """The rule on when a request is late, and whether it may be made again. Numbers in, answers out; time is an
    argument.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=LAST)
        self._answers = 0
        self._credit = 0.0
        self._mean = 0.0
        self.deadline = FIRST_S
        """Seconds after which a request is late."""
        self.second = 0
        """Requests made again."""

    def answered(self, took: float, size: int) -> None:
        """A request of ``size`` bytes was answered, ``took`` seconds after it was made first."""
        self._took.append(took)
        self._answers += 1
        self._mean += (size - self._mean) / min(self._answers, LAST)
        # What was saved in quiet times is not spent at once: a server that stalls would be asked for everything twice.
        self._credit = min(self._credit + SHARE * size, SHARE * LAST * self._mean)
        if self._answers >= KNOWN and self._answers % EVERY == 0:
            ordered = sorted(self._took)
            self.deadline = FACTOR * ordered[int(QUANTILE * (len(ordered) - 1))]

    def may(self, size: int) -> bool:
        """True if a late request of ``size`` bytes is made again. Asked for the oldest first."""
        if self._credit < size:
            return False
        self._credit -= size
        self.second += 1
        return True


class Hedging:
    """Reads, each made a second time when it is late. For one event loop."""

    def __init__(self, policy: Hedge | None = None) -> None:
        self.policy = policy or Hedge()
        self._flying: dict[_Flight, None] = {}  # those made once, oldest first
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, size: int, make: Callable[[], Awaitable[T]]) -> T:
        """The first answer. ``make`` makes the request, once or twice. A failure counts when the other failed, too."""
        loop = asyncio.get_running_loop()
        flight = _Flight(size, make, loop)
        self._flying[flight] = None
        self._look_later(loop)
        try:
            found: T = await flight.answer
        finally:
            self._flying.pop(flight, None)
            flight.end()
        self.policy.answered(loop.time() - flight.began, size)
        return found

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer, if it is not set. A single one is enough: nothing is late before the oldest is."""
        if self._timer is None and self._flying:
            self._timer = loop.call_at(next(iter(self._flying)).began + self.policy.deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for flight in tuple(self._flying):
            if now < flight.began + self.policy.deadline:
                break
            del self._flying[flight]  # whether it may be made again is asked once
            if self.policy.may(flight.size):
                flight.again()
        self._look_later(loop)


class _Flight:
    """A request, made once or twice."""

    def __init__(self, size: int, make: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> None:
        self.size, self._make, self._loop, self.began = size, make, loop, loop.time()
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.again()

    def again(self) -> None:
        task = self._loop.create_task(self._asked())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _asked(self) -> Any:
        return await self._make()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(task.result())
        elif not self._tasks:
            self.answer.set_exception(error)

    def end(self) -> None:
        """Cancel what has not answered yet."""
        for task in self._tasks:
            task.cancel()
