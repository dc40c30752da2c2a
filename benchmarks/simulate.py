"""Any policy on any trace: hits, reads and what each job was served, without a byte being moved.

Exact and slow: every decision looks at every sample. Samples are of one size, in one form.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.requests import Indices, Request, RequestTrace, due
from benchmarks.rules import Simulated
from headrace.cache.policies import NEVER, Standing


@dataclass(slots=True)
class Result:
    """What was counted, after the warm-up."""

    served: int = 0
    hits: int = 0
    reads: int = 0
    """Samples read from storage for a job that misses them."""
    refills: int = 0
    """Samples read from storage for nobody in particular."""
    exchanged: int = 0
    """Samples served that the job had not asked for in this request."""
    order: list[tuple[int, int, Indices]] = field(default_factory=list)
    """Job, epoch and what it was served, warm-up included."""

    @property
    def hit_rate(self) -> float:
        """Share of the samples served that were found in the cache."""
        return self.hits / max(1, self.served)

    @property
    def reads_per_sample(self) -> float:
        """Storage reads for each sample served, refills included."""
        return (self.reads + self.refills) / max(1, self.served)


class Simulation:
    """A cache of ``capacity`` samples. ``evictable``: the share of it whose entries may be replaced.

    ``refill_limit``: how many random samples may be read per request, for policies that refill.
    """

    def __init__(
        self,
        trace: RequestTrace,
        policy: Simulated,
        capacity: int,
        *,
        evictable: float = 1.0,
        refill_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        """Nothing is cached yet."""
        self.trace, self.policy, self.capacity, self.refill_limit = trace, policy, capacity, refill_limit
        self._rng = np.random.default_rng(seed)
        self.seen = np.zeros((trace.jobs, trace.samples), bool)
        self.cached = np.zeros(trace.samples, bool)
        self._fixed = np.zeros(trace.samples, bool)
        self._fixed_room = round(capacity * (1 - evictable))
        self._uses = np.zeros(trace.samples, np.int64)
        self._due = np.full(trace.samples, NEVER, np.int64)
        self._epoch = [0] * trace.jobs
        self._live = np.zeros(trace.jobs, bool)

    def run(self, *, warm_up: float = 1.0) -> Result:
        """All requests; those of the first ``warm_up`` epochs of the fastest job are not counted.

        Hits come early in an epoch where misses are exchanged: count whole epochs, of jobs at unequal speeds whole
        periods after which all begin one together.
        """
        result = Result()
        times = due(self.trace) if self.trace.jobs == 1 else None
        for number, request in enumerate(self.trace.requests):
            self._turn(request)
            if times is not None:
                self._due[request.samples] = times[number]
            served = self._choose(request)
            result.order.append((request.job, request.epoch, served))
            hit = self.cached[served]
            self.seen[request.job, served] = True
            self._uses[served[hit]] += 1
            self._admit(served[~hit])
            refilled = self._drop() if self.policy.drops else 0
            if request.time >= warm_up - 1e-9:
                result.served += len(served)
                result.hits += int(hit.sum())
                result.reads += int((~hit).sum())
                result.refills += refilled
                result.exchanged += len(np.setdiff1d(served, request.samples))
        return result

    def _turn(self, request: Request) -> None:
        self._live[request.job] = True
        if request.epoch != self._epoch[request.job]:
            assert not self.policy.exchanges or self.seen[request.job].all(), "samples are left of an epoch that ended"
            self.seen[request.job] = False
            self._epoch[request.job] = request.epoch

    def _choose(self, request: Request) -> Indices:
        """As many as were asked for, none of them seen by this job in this epoch."""
        seen, count = self.seen[request.job], len(request.samples)
        if not self.policy.exchanges:
            return request.samples
        asked = request.samples[~seen[request.samples]]
        if self._live.sum() < 2 and not self.policy.alone and len(asked) == count:
            drawn: Indices = asked
            return drawn
        hits = asked[self.cached[asked]]
        others = np.flatnonzero(self.cached & ~seen)
        others = others[~np.isin(others, hits)]
        hits = np.concatenate([hits, self._rng.permutation(others)[: count - len(hits)]])
        lacking = count - len(hits)
        if not lacking:
            return hits
        misses = np.flatnonzero(~self.cached & ~seen)
        urgency = self.policy.urgency(self._standing(misses)) + np.isin(misses, asked) * 0.5
        first = np.argsort(-(urgency + self._rng.random(len(misses)) * 0.4), kind="stable")
        return np.concatenate([hits, misses[first[:lacking]]])

    def _standing(self, samples: Indices) -> Standing:
        need = (~self.seen[self._live][:, samples]).sum(axis=0)
        return Standing(need, self._uses[samples], self._due[samples], int(self._live.sum()))

    def _admit(self, misses: Indices) -> None:
        self._uses[misses] = 1
        worth = self.policy.worth(self._standing(misses))
        misses = misses[np.argsort(-worth, kind="stable")]
        room = self.capacity - int(self.cached.sum())
        self._insert(misses[:room])
        misses = misses[room:]
        held = np.flatnonzero(self.cached & ~self._fixed)
        if not len(misses) or not len(held):
            return
        count = min(len(misses), len(held))
        misses = misses[:count]
        victims = self._least(held, count)
        better = self.policy.worth(self._standing(misses)) > self.policy.worth(self._standing(victims))
        self.cached[victims[better]] = False
        self._insert(misses[better])

    def _least(self, held: Indices, count: int) -> Indices:
        """The ``count`` entries worth least, least first; ties at random."""
        held = self._rng.permutation(held)
        worth = self.policy.worth(self._standing(held))
        return held[np.argsort(worth, kind="stable")[:count]]

    def _insert(self, samples: Indices) -> None:
        self.cached[samples] = True
        lacking = self._fixed_room - int(self._fixed.sum())
        self._fixed[samples[: max(0, lacking)]] = True

    def _drop(self) -> int:
        """Give up what is spent; the number of samples read in its place."""
        held: NDArray[np.int64] = np.flatnonzero(self.cached & ~self._fixed)
        spent = held[self.policy.worth(self._standing(held)) <= 0]
        if not self.policy.refills:
            self.cached[spent] = False
            return 0
        if self.refill_limit is not None:
            spent = self._rng.permutation(spent)[: self.refill_limit]
        fresh = self._rng.permutation(np.flatnonzero(~self.cached))[: len(spent)]
        self.cached[spent] = False
        self.cached[fresh] = True
        self._uses[fresh] = 0
        return len(fresh)


def simulate(trace: RequestTrace, policy: Simulated, share: float, *, warm_up: float = 1.0, **options: float) -> Result:
    """Run ``policy`` with ``share`` of the dataset cached; ``options`` as ``Simulation`` takes them."""
    return Simulation(trace, policy, round(share * trace.samples), **options).run(warm_up=warm_up)  # type: ignore[arg-type]
