"""Lanes follow demand: observes a run, asks the policy, changes the number of lanes that may work."""

import os
import time
from pathlib import Path

from headrace.engine.consumer.cores import CoreUse, free_memory, ranks
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.tally import Tally
from headrace.engine.worker.job import Resume
from headrace.plan.lanes import LanePolicy, Observed
from headrace.sched import words as W
from headrace.sched.consumer import ConsumerLedger

PERIOD_SECONDS = 0.5
BATCHES = 4
"""A period has at least this many batches, so that a rate is one."""
RESERVE = 0.1
"""Share of the free memory that lanes leave alone."""


class Governor:
    """Called by a run when the consumer comes; changes the limit of lanes between two batches, never within."""

    def __init__(self, pool: Pool, ledger: ConsumerLedger, policy: LanePolicy, tally: Tally) -> None:
        """Starts from the pool's workers."""
        self._pool, self._ledger, self._policy, self._tally = pool, ledger, policy, tally
        self._words = pool.memory.words
        self._began, self._cores = time.monotonic(), CoreUse(pool.pids())
        self._finished = 0
        self._waited = self._occupancy = 0.0
        self._batches = 0

    def waited(self, seconds: float) -> None:
        """The consumer was blocked."""
        self._waited += seconds

    def delivered(self, samples: int, occupancy: float) -> None:
        """A batch was handed out; ``occupancy`` of the outstanding ones was ready then."""
        self._finished += samples
        self._occupancy += occupancy
        self._batches += 1
        elapsed = time.monotonic() - self._began
        if elapsed >= PERIOD_SECONDS and self._batches >= BATCHES:
            self._decide(elapsed)

    def _decide(self, elapsed: float) -> None:
        limit = self._words[W.LIMIT]
        observed = Observed(
            lanes=limit,
            rate=self._finished / elapsed,
            waited=min(1.0, self._waited / elapsed),
            occupancy=self._occupancy / self._batches,
            cpu=min(1.0, self._cores.ask(self._pool.pids()).fullness(limit)),
            affordable=limit + self._affordable(),
        )
        self._change(self._policy.lanes(observed))
        self._began = time.monotonic()
        self._finished = self._batches = 0
        self._waited = self._occupancy = 0.0

    def _affordable(self) -> int:
        """Further lanes that fit into this rank's part of memory, each as large as the largest and with its batches."""
        largest = max((_own_memory(pid) for pid in self._pool.pids()), default=0)
        batches = self._tally.slab_bytes // max(1, self._words[W.LIMIT])
        return int(free_memory() * (1 - RESERVE)) // ranks() // max(1, largest + batches)

    def _change(self, lanes: int) -> None:
        pool = self._pool
        with pool.section():
            more = lanes - self._words[W.LIMIT]
            self._words[W.LIMIT] = lanes
            asleep = self._ledger.rouse(pool.lanes) if more > 0 else []
        pool.ring(asleep)
        for _ in range(lanes - pool.lanes):
            pool.add(Resume())
        self._tally.lane_changes.note(lanes)


def _own_memory(pid: int) -> int:
    """Bytes that a process does not share with others, about."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
