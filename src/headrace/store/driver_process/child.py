"""The process in which a driver runs: answers calls until the socket is closed, and ends without tidying up."""

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from headrace.store import disposable
from headrace.store.base import Session
from headrace.store.channel import Channel
from headrace.store.driver_process import messages
from headrace.store.driver_process.direct import DirectStore, DirectWriter
from headrace.store.failures import described

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
    """What ends the process is a thread that needs no lock; it is put off again and again."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        while True:
            faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True, file=nowhere)
            time.sleep(LOOK_SECONDS)


async def _serve(connection: socket.socket) -> None:
    calls = _Calls()
    calls.channel = Channel(connection, calls.taken, _leave)
    await asyncio.Event().wait()


def _leave() -> None:
    """Nobody is there to be answered. A driver's threads may not survive an orderly end, and nothing needs one."""
    os._exit(0)


class _Calls:
    """Answers them, each in a task of its own."""

    channel: Channel
    _store: DirectStore
    _session: Session
    _writer: DirectWriter

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: Exception | None = None

    def taken(self, number: int, head: dict[str, Any], body: memoryview) -> None:
        task = asyncio.create_task(self._answer(number, head, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, head: dict[str, Any], body: memoryview) -> None:
        if number == 0:
            try:
                self._store = pickle.loads(body).direct()  # noqa: S301  (from the process that started this one)
            except Exception as error:  # noqa: BLE001  (raised by every call)
                self._refused = error
            return
        try:
            answer, parts = await self._called(head, body)
        except Exception as error:  # noqa: BLE001  (raised again where the call was made)
            answer, parts = described(error), []
        self.channel.send(number, answer, parts)

    async def _called(self, head: dict[str, Any], body: memoryview) -> tuple[dict[str, Any], list[bytes | memoryview]]:
        if self._refused is not None:
            raise self._refused
        answer: dict[str, Any] = {}
        match head["call"]:
            case "get":
                return messages.row(await self._session.get(head["key"]))
            case "put":
                await self._writer.put(messages.read_records(head, body))
            case "present":
                answer["present"] = sorted(await self._writer.present(head["keys"]))
            case "stored":
                answer["stored"] = await self._writer.stored(head["keys"])
            case "remove":
                answer["removed"] = await self._writer.remove(head["keys"])
            case "columns":
                return messages.listing(await self._store.columns(head["names"]))
            case "provenance":
                found = await self._store.provenance()
                return {"identity": found.identity, "revision": found.revision}, []
            case "create":
                await self._store.create(messages.read_schema(head))
            case "read":
                self._session = await self._store.connect()
                answer["connections"] = self._session.connections()
            case "write":
                self._writer = await self._store.writer()
                answer = messages.schema(self._writer.schema)
        return answer, []
