"""The trainer's eye on its workers, whenever it is in ``next()``: what is slow, who stands in, how many work."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import LimitReached
from headrace.engine.processes.worker_pool import Pool
from headrace.engine.trainer.automatic import Automatic, affordable
from headrace.engine.trainer.cores import CoreUse, own_cores
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.trainer.stragglers import Stragglers
from headrace.plan import cost
from headrace.plan.lanes import LaneRates, fullness
from headrace.sched.epochs import oversight
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.lanes.pace import CUT_NS
from headrace.sched.resume import Resume

RETHINK_NS = 50_000_000
"""The threshold follows the costs this often at most."""
WAKING_NS = cost.PAYS_NS
"""The least time of a sample that is stood in for: else waking a process and sharing the caches with it would cost
more.
"""
LOOK_NS = 1_000_000
"""Nothing becomes slow faster than this, so there is no point in looking more often."""
STARTING_NS = 50_000_000
"""The same as long as nobody is parked: starting a process takes about half of this."""

MEASURE_NS = 250_000_000
FULL = 0.85
"""Share of their time that lanes run or want to when they wait for nothing else."""

PERIOD_NS = 500_000_000
FIRST_NS = 150_000_000
"""The first period, which only has to tell how far the first step goes."""
SETTLE_NS = 200_000_000
"""After a change: processes that start use the cores for nothing else."""
SAMPLES = 8
"""A period has at least this many samples for each lane, so that a rate is one."""
PATIENCE = 8
"""Periods that are waited for so many, where samples take long."""


@dataclass(slots=True)
class _Period:
    """The figures that the automatic number of lanes is decided from."""

    began: int
    finished: int
    """Samples that had been finished then."""
    length: int
    running: float = 0.0
    queued: float = 0.0
    waited: float = 0.0
    occupancy: float = 0.0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Staffing:
    """The workers that an epoch may have: spares, the number of lanes, samples to begin at once."""

    spares: Callable[[int], int]
    """Processes that may stand in for those busy with slow samples, from the number of lanes."""
    automatic: Automatic | None = None
    """Decides how many lanes work; None leaves it at the pool's."""
    stragglers: Stragglers | None = None
    """Samples to begin as soon as they are drawn; None where a batch is made by one lane."""


class Watch:
    """A watch over one epoch."""

    def __init__(self, pool: Pool, ledger: TrainerLedger, counters: LoaderCounters, staffing: Staffing) -> None:
        self._pool, self._ledger, self._counters = pool, ledger, counters
        self._spares, self._automatic = staffing.spares, staffing.automatic
        self._gauges = pool.gauges()
        self._threshold = cost.Threshold(self._gauges.threshold)
        self._patience = 1.0
        self._rethought, self._looked = time.monotonic_ns(), 0  # what an epoch costs is not known when it begins
        self._due: int | None = None
        self._measured, self._cores, self._full = time.monotonic_ns(), CoreUse(pool.pids()), False
        self._finished, self._slow = self._gauges.counts()  # those in the counters
        self._period: _Period | None = None  # from the first batch on: before it, workers are starting

    def look(self, *, draining: bool = False) -> None:
        """Put slow lanes aside and let others take their places, started if need be; change the number of lanes.

        ``draining``: nothing is left to be handed out, so what the lanes do says nothing of what they could.
        """
        now = time.monotonic_ns()
        if self._is_growing():
            self._grow()
            return
        if now - self._looked < LOOK_NS or (now < (self._due or 0) and now - self._rethought < RETHINK_NS):
            return
        self._looked = now
        if now - self._rethought >= RETHINK_NS:
            self._rethought = now
            self._rethink()
            if self._automatic is not None and self._period is not None and not draining:
                self._consider(now, self._automatic, self._period)
                if self._is_growing():
                    return
        if self._threshold.cost_ns == 0:
            self._due = self._rethought + RETHINK_NS  # what is slow may be known by then
        else:
            self._attend(now)

    def _attend(self, now: int) -> None:
        """Attend to slow samples: nothing waits behind one that takes long; in its lane's place another works if it
        takes very long.
        """
        pool, spares = self._pool, self._spares(self._gauges.limit)
        brief = max(self._threshold.cost_ns, CUT_NS)  # lanes rely on it: see `relieve`
        self._due = oversight.becomes_slow(self._ledger, pool.lanes, now, brief, before_others=True)
        if self._due is not None and self._due <= now:
            self._due = self._relieve(now, brief)
        if spares == 0:
            return
        parked = pool.lanes > self._gauges.limit
        bar = max(int(self._patience * self._threshold.cost_ns), WAKING_NS if parked else STARTING_NS)
        slow = oversight.becomes_slow(self._ledger, pool.lanes, now, bar)
        if (slow is not None and slow <= now) or self._gauges.vacant > 0:
            # Only now, since asking takes longer than all the rest. Cores that are full may not stay so.
            slow = now + MEASURE_NS if self._cores_are_full(now) else self._hand_over(now, bar, spares)
        self._due = slow if self._due is None else min(self._due, self._due if slow is None else slow)

    def _is_growing(self) -> bool:
        return self._automatic is not None and self._pool.lanes < self._gauges.limit

    def _grow(self) -> None:
        """Start one of the missing: batches that are ready meanwhile need not wait for all of them.

        Where a limit of the system forbids it, there are as many as there can be.
        """
        try:
            self._pool.add(Resume())
        except LimitReached:
            assert self._automatic is not None
            self._automatic.bound(self._pool.lanes)
            self._change(self._pool.lanes)
        if self._period is not None and not self._is_growing():
            self._begin_period(time.monotonic_ns() + SETTLE_NS, PERIOD_NS)

    def _relieve(self, now: int, threshold: int) -> int | None:
        """Have others make what a lane took together with a slow sample; when to look again."""
        pool = self._pool
        with pool.section:
            taken, due = oversight.relieve(self._ledger, pool.lanes, now, threshold)
            asleep = oversight.rouse(self._ledger, pool.lanes, taken) if taken else []
        pool.ring(asleep)
        return due

    def _hand_over(self, now: int, threshold: int, spares: int) -> int | None:
        """Put slow lanes aside and have others work in their places; when to look again."""
        pool = self._pool
        with pool.section:
            due = oversight.put_aside(self._ledger, pool.lanes, now, threshold, spares)
            asleep = oversight.rouse(self._ledger, pool.lanes) if self._gauges.vacant > 0 else []
            self._counters.aside = oversight.count_aside(self._ledger, pool.lanes)
            available = pool.lanes - self._counters.aside
        pool.ring(asleep)
        for _ in range(min(self._gauges.limit - available, pool.memory.dims.lanes - pool.lanes)):
            pool.add(Resume())
            self._counters.spares += 1
        return due

    def _cores_are_full(self, now: int) -> bool:
        """True if the lanes use up the cores: another runnable process would then only be in their way."""
        if now - self._measured >= MEASURE_NS:
            self._measure(now)
        return self._full

    def _measure(self, now: int) -> None:
        use = self._cores.ask(self._pool.pids())
        self._measured = now
        ran, queued = use.running / use.seconds, use.queued / use.seconds
        self._full = fullness(self._gauges.limit, ran, queued, own_cores()) > FULL
        if self._period is not None:
            self._period.running += use.running
            self._period.queued += use.queued

    def due(self) -> float | None:
        """Seconds until a sample becomes slow, if one is under way that can, or the number of lanes is decided."""
        due = self._due
        if self._is_growing():
            return 0.0
        if self._period is not None:
            end = self._period.began + self._period.length
            due = end if due is None else min(due, max(end, self._rethought + RETHINK_NS))
        return None if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9) + 0.0005

    def waited(self, seconds: float) -> None:
        if self._period is not None:
            self._period.waited += seconds

    def delivered(self, occupancy: float) -> None:
        """A batch was handed out; ``occupancy`` of the outstanding ones was ready then."""
        if self._period is not None:
            self._period.occupancy += occupancy
            self._period.batches += 1
        elif self._automatic is not None:
            self._begin_period(time.monotonic_ns(), FIRST_NS)

    def _begin_period(self, began: int, length: int) -> None:
        self._measure(time.monotonic_ns())
        self._period = _Period(began, self._counters.fast + self._counters.slow, length)

    def _consider(self, now: int, automatic: Automatic, period: _Period) -> None:
        """Ask the policy, once the period is long enough to tell something."""
        if now < period.began:  # processes are starting
            self._begin_period(period.began, period.length)
            return
        elapsed, lanes = now - period.began, self._gauges.limit
        finished = self._counters.fast + self._counters.slow - period.finished
        few = finished < SAMPLES * lanes and elapsed < PATIENCE * period.length
        if elapsed < period.length or few or finished == 0:
            return
        self._measure(now)
        seconds = elapsed / 1e9
        observed = LaneRates(
            lanes=lanes,
            rate=finished / seconds,
            waited=min(1.0, period.waited / seconds),
            occupancy=period.occupancy / max(1, period.batches),
            running=period.running / seconds,
            queued=period.queued / seconds,
            cores=own_cores(),
            affordable=lanes + affordable(self._pool.pids(), self._counters.slab_bytes // max(1, lanes)),
            aside=self._counters.aside,
        )
        decided = automatic.decide(observed)
        if decided != lanes:
            self._change(decided)
        self._begin_period(now, PERIOD_NS)

    def _change(self, lanes: int) -> None:
        pool = self._pool
        with pool.section:
            self._gauges.limit = lanes
            # Also when there are fewer: those awake may lose their places.
            asleep = oversight.rouse(self._ledger, pool.lanes)
        pool.ring(asleep)
        self._counters.lane_changes.note(lanes)

    def count(self) -> None:
        with self._pool.section:
            self._count()

    def _count(self) -> None:
        self._counters.hand_offs += self._gauges.take_handoffs()
        finished, slow = self._gauges.counts()
        self._counters.slow += slow - self._slow
        self._counters.fast += finished - self._finished - (slow - self._slow)
        self._finished, self._slow = finished, slow
        self._counters.aside = oversight.count_aside(self._ledger, self._pool.lanes)

    def _rethink(self) -> None:
        gauges = self._gauges
        with self._pool.section:
            costs = gauges.costs()
            self._threshold = cost.threshold(costs.histogram, costs.finished, costs.slow, self._threshold)
            gauges.threshold = self._threshold.cost_ns
            if costs.returns >= cost.RETURNS:
                self._patience = cost.patience(self._patience, costs.returns, costs.excess)
                gauges.restart_returns()
            self._count()
            if costs.finished >= cost.MEMORY // 8:
                gauges.restart_counts()
                self._finished = self._slow = 0
            faded = cost.faded(costs.histogram)
            if faded is not None:
                gauges.fade(faded)
        self._counters.thresholds.note(self._threshold.cost_ns / 1e9)
