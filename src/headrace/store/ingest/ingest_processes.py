"""Several processes that ingest: chunks of items out through pipes, tallies back.

A process that dies (killed for memory, say) is replaced and its chunk begun again, which is safe because storing twice
is storing once; an item that kills its process twice is a failure. If this process dies, the others follow.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from headrace.core.errors import HeadraceError, IngestError
from headrace.store.ingest.outcome import IngestFailure, IngestTally
from headrace.store.ingest.sources.item_source import Item
from headrace.store.ingest.work import Ingester, IngestJob

DEATHS = 2
"""As many processes may die of the same items."""
IN_A_ROW = 8
"""Deaths beyond one per process, without any work done between them, after which it is not the items."""
GRACE_S = 5.0
"""How long they all together may take to see their pipes end and close what they hold."""


@dataclass
class _Chunk:
    items: Sequence[Item]
    deaths: int = 0


@dataclass
class _IngestWorker:
    """A process, the pipe to it, and what it is at."""

    process: SpawnProcess
    pipe: Connection
    chunk: _Chunk | None = None


def by_processes(job: IngestJob, chunks: Iterator[Sequence[Item]], number: int) -> Iterator[IngestTally]:
    """Tallies as they come. Its processes end with it, also when it is closed early."""
    workers = _Workers(job, chunks)
    try:
        for _ in range(number):
            workers.start()
        yield from workers.tallies(number)
    finally:
        workers.end()


class _Workers:
    def __init__(self, job: IngestJob, chunks: Iterator[Sequence[Item]]) -> None:
        self._job, self._chunks = job, chunks
        self._context = multiprocessing.get_context("spawn")
        self._all: list[_IngestWorker] = []
        self._again: deque[_Chunk] = deque()

    def start(self) -> None:
        """Start one more process, and set it to work."""
        # A pipe for each: a queue's lock would stay locked when the process that holds it is killed.
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(self._job, theirs), name="headrace-ingest", daemon=True)
        process.start()
        theirs.close()  # else its death would not end the pipe
        self._all.append(_IngestWorker(process, ours))
        self._send_next(self._all[-1])

    def tallies(self, number: int) -> Iterator[IngestTally]:
        """Yield tallies until nothing is left to do."""
        deaths = 0
        while busy := [worker for worker in self._all if worker.chunk is not None]:
            ready = set(wait([worker.pipe for worker in busy]))
            for worker in (each for each in busy if each.pipe in ready):
                try:
                    answer = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    deaths += 1
                    if deaths > number + IN_A_ROW:
                        raise IngestError("processes die before they work; try without workers to see why") from None
                    yield from self._died(worker)
                    self.start()
                    continue
                if isinstance(answer, HeadraceError):
                    raise answer
                deaths = 0
                yield answer
                self._send_next(worker)

    def end(self) -> None:
        """Ends every process; those that do not see their pipe end in time are killed."""
        for worker in self._all:
            worker.pipe.close()
        deadline = time.monotonic() + GRACE_S
        for worker in self._all:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._all.clear()

    def _send_next(self, worker: _IngestWorker) -> None:
        if self._again:
            worker.chunk = self._again.popleft()
        else:
            items = next(self._chunks, None)
            worker.chunk = None if items is None else _Chunk(items)
        if worker.chunk is not None:
            with suppress(BrokenPipeError):  # it is dead, and its pipe will tell
                worker.pipe.send((worker.chunk.items, worker.chunk.deaths > 0))

    def _died(self, worker: _IngestWorker) -> Iterator[IngestTally]:
        """A process is gone. Its items are tried again, one by one if it happens again, and in the end are failures."""
        worker.process.join()
        code = worker.process.exitcode
        self._all.remove(worker)
        worker.pipe.close()
        worker.process.close()
        chunk = worker.chunk
        assert chunk is not None
        chunk.deaths += 1
        if chunk.deaths < DEATHS:
            self._again.append(chunk)
        elif len(chunk.items) > 1:
            self._again.extend(_Chunk([item], deaths=1) for item in chunk.items)
        else:
            yield IngestTally(
                failures=[IngestFailure(chunk.items[0].ident, f"its process died twice (exit code {code})")]
            )


def _work(job: IngestJob, pipe: Connection) -> None:
    """A process's life: chunks until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that began it, which ends this one
    threading.Thread(target=_follow, daemon=True).start()
    with suppress(EOFError, OSError):
        try:
            with Ingester(job) as ingester:
                while True:
                    items, again = pipe.recv()
                    pipe.send(ingester.take(items, again=again))
        except HeadraceError as error:
            pipe.send(error)


def _follow() -> None:
    """Follow the parent into death, also out of a long read: what is stored is stored, and nobody waits for the
    rest.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
