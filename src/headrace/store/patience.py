"""A time limit for each of many attempts, with one timer for all of them."""

import asyncio
from collections import deque


class Attempt:
    """One that is under way, in the task that makes it."""

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
        """It took too long."""
        if self._task is not None:
            self.expired = True
            self._task.cancel()

    def end(self) -> bool:
        """It is over, in whatever way. Whether a cancellation that came of it was nobody else's but its own."""
        task, self._task = self._task, None
        return self.expired and task is not None and task.uncancel() <= self._cancelling


class Patience:
    """So many seconds for each attempt: as all may take equally long, the first to begin is the first to be over due.

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
        """Someone's time may be over."""
        attempts, now = self._attempts, loop.time()
        while attempts and (attempts[0].is_over or attempts[0].due <= now):
            attempts.popleft().expire()
        self._timer = loop.call_at(attempts[0].due, self._look, loop) if attempts else None
