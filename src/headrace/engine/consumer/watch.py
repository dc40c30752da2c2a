"""The consumer's eye on slow samples, whenever it is in ``next()``: it decides what is slow and who stands in."""

import time

from headrace.engine.consumer.cores import CoreUse
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.tally import Tally
from headrace.engine.worker.job import Resume
from headrace.plan import cost
from headrace.sched import words as W
from headrace.sched.consumer import ConsumerLedger

RETHINK_NS = 50_000_000
"""The threshold follows the costs this often at most."""
WAKING_NS = cost.PAYS_NS
"""Nobody stands in for a sample that takes less: waking a process and sharing the caches with it would cost more."""
LOOK_NS = 1_000_000
"""Nothing becomes slow faster than this, so there is no point in looking more often."""
STARTING_NS = 50_000_000
"""As long as nobody is parked: starting a process takes about half of this."""

MEASURE_NS = 250_000_000
FULL = 0.85
"""Share of their time that lanes run or want to when they wait for nothing else."""


class Watch:
    """Follows the costs of one epoch."""

    def __init__(self, pool: Pool, ledger: ConsumerLedger, spares: int, tally: Tally) -> None:
        """``spares``: lanes that may be aside at once. What earlier epochs cost is still known."""
        self._pool, self._ledger, self._spares, self._tally = pool, ledger, spares, tally
        self._words = pool.memory.words
        self._threshold = cost.Threshold(self._words[W.THRESHOLD])
        self._patience = 1.0
        self._rethought = self._looked = 0
        self._due: int | None = None
        self._measured, self._cores, self._full = time.monotonic_ns(), CoreUse(pool.pids()), False
        self._finished, self._slow = self._words[W.FINISHED], self._words[W.SLOW]  # those in the tally

    def look(self) -> None:
        """Put slow lanes aside and let others take their places, started if need be."""
        now = time.monotonic_ns()
        if now - self._looked < LOOK_NS or (now < (self._due or 0) and now - self._rethought < RETHINK_NS):
            return
        self._looked = now
        if now - self._rethought >= RETHINK_NS:
            self._rethought = now
            self._rethink()
        if self._spares == 0 or self._threshold.cost_ns == 0 or self._cores_are_full(now):
            # Cores that are full may not stay so, and what is slow may be known by then.
            self._due = now + MEASURE_NS if self._full else self._rethought + RETHINK_NS if self._spares else None
            return
        pool = self._pool
        with pool.section():
            parked = pool.lanes > self._words[W.LIMIT]
            bar = int(self._patience * self._threshold.cost_ns)
            threshold = max(bar, WAKING_NS if parked else STARTING_NS)
            self._due = self._ledger.put_aside(pool.lanes, now, threshold, self._spares)
            vacant = self._words[W.LIMIT] - self._words[W.FOREGROUND]
            asleep = self._ledger.rouse(pool.lanes) if vacant > 0 else []
            self._tally.aside = self._ledger.aside(pool.lanes)
            available = pool.lanes - self._tally.aside
        pool.ring(asleep)
        for _ in range(min(self._words[W.LIMIT] - available, pool.memory.dims.lanes - pool.lanes)):
            pool.add(Resume())
            self._tally.spares += 1

    def _cores_are_full(self, now: int) -> bool:
        """Whether the lanes use up the cores: another runnable process would then only be in their way."""
        if now - self._measured >= MEASURE_NS:
            self._full = self._cores.ask(self._pool.pids()).fullness(self._words[W.LIMIT]) > FULL
            self._measured = now
        return self._full

    def due(self) -> float | None:
        """Seconds until a sample becomes slow, if one is under way that can."""
        return None if self._due is None else max(0.0, (self._due - time.monotonic_ns()) / 1e9) + 0.0005

    def count(self) -> None:
        """Bring the tally up to date."""
        with self._pool.section():
            self._count()
            self._tally.aside = self._ledger.aside(self._pool.lanes)

    def _count(self) -> None:
        w = self._words
        self._tally.hand_offs += w[W.HANDOFFS]
        finished, slow = w[W.FINISHED] - self._finished, w[W.SLOW] - self._slow
        self._tally.slow += slow
        self._tally.fast += finished - slow
        w[W.HANDOFFS], self._finished, self._slow = 0, w[W.FINISHED], w[W.SLOW]

    def _rethink(self) -> None:
        w = self._words
        with self._pool.section():
            histogram = w[W.HISTOGRAM : W.HISTOGRAM + cost.BINS].tolist()
            finished, slow = w[W.FINISHED], w[W.SLOW]
            self._threshold = cost.threshold(histogram, finished, slow, self._threshold)
            w[W.THRESHOLD] = self._threshold.cost_ns
            if w[W.RETURNS] >= cost.RETURNS:
                self._patience = cost.patience(self._patience, w[W.RETURNS], w[W.EXCESS])
                w[W.RETURNS] = w[W.EXCESS] = 0
            self._count()
            if finished >= cost.MEMORY // 8:
                w[W.FINISHED] = w[W.SLOW] = self._finished = self._slow = 0
            faded = cost.faded(histogram)
            if faded is not None:
                for cost_bin, count in enumerate(faded):
                    w[W.HISTOGRAM + cost_bin] = count
        self._tally.thresholds.note(self._threshold.cost_ns / 1e9)
