"""The process in which a driver runs: answers calls until the socket is closed, and ends without tidying up."""

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import StoreError
from headrace.store import disposable
from headrace.store.base import Row
from headrace.store.driver_process.driven_store import ServedStore
from headrace.store.reading.channel import Channel
from headrace.store.shards.formats import PreparedStore

LOOK_SECONDS = 1.0
HUNG_SECONDS = 30.0
"""A process in which nobody had the interpreter's lock for so long waits for a driver for ever: it ends itself."""


def main(connection: int) -> None:
    """Serve whoever holds the other end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process decides
    disposable.declare()
    threading.Thread(target=_watch, daemon=True).start()
    try:
        asyncio.run(_serve(socket.socket(fileno=connection)))
    finally:
        os._exit(1)  # not reached while all is well


def _watch() -> None:
    """End a hung process: the timer is a thread that needs no lock, and is put off again and again."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        while True:
            faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True, file=nowhere)
            time.sleep(LOOK_SECONDS)


async def _serve(connection: socket.socket) -> None:
    calls = _Calls()
    calls.channel = Channel(connection, calls.taken, _leave)
    await asyncio.Event().wait()


def _leave() -> None:
    """End at once. A driver's threads may not survive an orderly end, and nobody is left to be answered."""
    os._exit(0)


class _Calls:
    """Answers them, each in a task of its own: calls of the store, or of the session or writer that was opened."""

    channel: Channel

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._store: Any = None
        self._opened: Any = None
        self._refused: Exception | None = None

    def taken(self, number: int, message: Any) -> None:
        task = asyncio.create_task(self._answer(number, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, message: Any) -> None:
        if number == 0:
            try:
                store = pickle.loads(message)  # noqa: S301  (from the process that started this one)
                self._store = store.direct() if isinstance(store, ServedStore) else store
            except Exception as error:  # noqa: BLE001  (raised by every call)
                self._refused = error
            return
        try:
            answer = await self._called(*message)
            if isinstance(answer, Row):
                answer = answer._replace(payload=bytes(answer.payload))  # a view cannot be sent
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001  (raised again where the call was made)
            answer = StoreError(f"{type(error).__name__}: {error}")
        self.channel.send(number, answer)

    async def _called(self, name: str, arguments: Sequence[Any]) -> Any:
        if self._refused is not None:
            raise self._refused
        if name == "connect":
            if isinstance(self._store, PreparedStore):
                await asyncio.to_thread(self._store.prepare)
            self._opened = await self._store.connect()
            return self._opened.connections()
        if name == "writer":
            self._opened = await self._store.writer()
            return self._opened.schema
        return await getattr(self._opened or self._store, name)(*arguments)
