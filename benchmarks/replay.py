"""A trace of what jobs ask for, through the cache's own rules and shared memory: entries are words, and no bytes."""

from __future__ import annotations

import math
import os
import secrets

import numpy as np

from benchmarks.requests import RequestTrace
from benchmarks.simulate import Result
from headrace.cache.backends import entry_word as W
from headrace.cache.backends import local_tables, shm
from headrace.cache.backends.backend import Entry
from headrace.cache.division import DivisionRecord
from headrace.cache.entries.codec import Described
from headrace.cache.peers import Unit
from headrace.cache.policies import Policy
from headrace.cache.remaining import Remaining
from headrace.cache.serving import Serving
from headrace.cache.share import Share

ENTRY = 4096 + local_tables.INODE
SCOPES = ("a" * 32, "b" * 32, "c" * 32)
PARTS = (0, 100, 0)


class _Nothing:
    """An entry without bytes."""

    def settle(self) -> bool:
        return True

    def drop(self) -> None:
        """Nothing."""


class _Words(local_tables.LocalBackend):
    """Only the table."""

    def aside(self, entry: Entry, content: object) -> _Nothing:  # type: ignore[override]
        return _Nothing()

    def erase(self, entries: object) -> None:
        """Nothing."""


class _Job:
    def __init__(
        self, name: str, number: int, trace: RequestTrace, limit: int, policy: Policy, exchange: float
    ) -> None:
        directory = shm.Directory(name, limit)
        backend = _Words(directory, "0" * 16, trace.samples)
        backend.divide(DivisionRecord(0, PARTS, fixed=False, before=PARTS), None)
        unit = Unit(f"{number:016x}", f"{number}-0")
        self.share = Share(backend, None, SCOPES, limit, unit, policy)  # type: ignore[arg-type]
        self.serving = Serving(self.share, exchange)
        self.epoch, self.samples, self.number = -1, trace.samples, number

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        rng = np.random.default_rng([self.number, epoch])
        self.remaining = Remaining(self.samples, None, np.empty(0, np.int64), rng)
        self.serving.begin()


class Replay:
    """A cache of ``share`` of the samples, all of one size."""

    def __init__(self, trace: RequestTrace, policy: Policy, share: float, exchange: float = math.inf) -> None:
        """Nothing is cached yet. ``exchange``: see ``Cache``; 0: samples come as drawn."""
        self._trace, self._policy, self._exchange = trace, policy, exchange
        self._limit = round(share * trace.samples) * ENTRY + shm.table_bytes(trace.samples)

    def run(self, *, warm_up: float = 1.0) -> Result:
        """All requests; those of the first ``warm_up`` epochs of the fastest job are not counted."""
        name, result = f"replay-{os.getpid()}-{secrets.token_hex(4)}", Result()
        entry = Described(b"", [(0, b"")], 0)
        jobs = [
            _Job(name, number, self._trace, max(self._limit, shm.LEAST), self._policy, self._exchange)
            for number in range(self._trace.jobs)
        ]
        try:
            for request in self._trace.requests:
                job = jobs[request.job]
                if job.epoch != request.epoch:
                    job.begin(request.epoch)
                    for each in jobs:
                        each.share.peers.look(now=True)
                answer = job.serving.request(request.samples, job.remaining if self._exchange else None)
                job.remaining.take(answer.samples)
                job.serving.saw(answer.samples)
                result.order.append((request.job, request.epoch, answer.samples))
                for sample, keep in zip(answer.samples.tolist(), answer.keep.tolist(), strict=True):
                    if keep:
                        job.share.keep(sample, W.DECODED, entry)
                if request.time >= warm_up - 1e-9:
                    # Each is made at once: nothing that is to be looked for has come since.
                    hits = int(np.count_nonzero((answer.words > 0) & (answer.words != W.LOOK)))
                    result.served += len(answer.samples)
                    result.hits += hits
                    result.reads += len(answer.samples) - hits
        finally:
            for job in jobs:
                job.serving.end()
                job.share.close()
            shm.remove(name)
        return result
