"""A driver's process as the one that needs it sees it: it is started, asked, replaced when it dies, and killed."""

import asyncio
import pickle
import socket
import subprocess
from typing import Any

from headrace.core.errors import StoreError, StoreUnavailable
from headrace.store.reading.channel import Channel
from headrace.store.reading.interpreter import started

_PROGRAM = "import sys; from headrace.store.driver_process.child import main; main(int(sys.argv[1]))"
DEATHS_ALLOWED = 3
"""Processes that may die over one call before it counts as failed."""


class _Died(Exception):
    """The death of a process, with its exit code."""


class _Process:
    """A driver's process, for the event loop that started it. Killing it is a proper end: it owes nobody anything."""

    def __init__(self, store: object) -> None:
        told = pickle.dumps(store)
        ours, theirs = socket.socketpair()
        with theirs:  # only the process has it: when that dies, ours is at its end
            try:
                self._process: subprocess.Popen[bytes] = started(_PROGRAM, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.exit_code: int | None = None
        self._channel = Channel(ours, self._taken, self.end)
        self._channel.send(0, told)

    async def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.exit_code is not None:
            raise _Died(self.exit_code)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._channel.send(number, (name, arguments))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _taken(self, number: int, message: Any) -> None:
        answer = self._waiting.get(number)  # None: nobody waits for it any more
        if answer is not None and not answer.done():
            if isinstance(message, StoreError):
                answer.set_exception(message)
            else:
                answer.set_result(message)

    def end(self) -> None:
        """Idempotent. Whoever waits for an answer hears that there is none."""
        self._channel.close()
        if self.exit_code is None:
            self._process.kill()
            self.exit_code = self._process.wait()
            for answer in self._waiting.values():
                if not answer.done() and not answer.get_loop().is_closed():
                    answer.set_exception(_Died(self.exit_code))


class DriverProcess:
    """A process in which a store's driver runs, there when it is needed. Used by one event loop.

    Every call is idempotent, so one whose process died is made again, by another one.
    """

    def __init__(self, store: Any, opening: str | None = None) -> None:
        """``opening``: the call that is made first, in each of them."""
        self._store, self._opening = store, opening
        self._process: _Process | None = None
        self._starting = asyncio.Lock()
        self.opened: Any = None
        """What the opening call was answered."""

    async def call(self, name: str | None, *arguments: Any) -> Any:
        """The answer of a process that did not die over the call; raises the ``StoreError`` raised there.

        Without a name nothing is asked, but there is a process, and in it is open what it is for.
        """
        code: int | None = None
        for _ in range(DEATHS_ALLOWED):
            try:
                process = await self._running()
                return None if name is None else await process.call(name, arguments)
            except _Died as died:
                code = died.args[0]
        server = self._store.name
        deaths = f"died {DEATHS_ALLOWED} times, the last time with exit code {code}"
        raise StoreUnavailable.at(server, f"the process that speaks with it {deaths}")

    async def _running(self) -> _Process:
        async with self._starting:  # of calls that find it dead at one time, one starts another
            if self._process is not None and self._process.exit_code is None:
                return self._process
            self.close()
            process = self._process = _Process(self._store)
            try:
                if self._opening is not None:
                    self.opened = await process.call(self._opening, ())
            except BaseException:
                self.close()
                raise
            return process

    def close(self) -> None:
        """Kills the process; idempotent. The next call has another one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()
