"""A trace through the real ledger, in memory of this process: what a simulation promises, kept or not."""

import numpy as np

from headrace.cache import ledger
from headrace.cache import words as W
from headrace.cache.book import Answer
from headrace.cache.ledger import Seat
from headrace.cache.policies import Policy
from headrace.cache.simulate import Result
from headrace.cache.trace import Trace

ENTRY = 1000
"""Bytes that each sample is said to have."""
_FOREVER = 1 << 60


class Replay:
    """All jobs of a trace at one ledger. Samples are of one size, in one form, as in the simulation."""

    def __init__(self, trace: Trace, policy: Policy, share: float) -> None:
        """``share`` of the dataset fits into the cache."""
        dims = W.Dims(trace.samples)
        self.trace, self.words = trace, np.zeros(dims.words, np.int64)
        ledger.found(self.words, dims, (0, round(share * trace.samples) * ENTRY, 0))
        self._seats = [
            Seat(self.words, self.words, policy=policy, name=job, group=job, timeout=_FOREVER, seed=job)
            for job in range(1, trace.jobs + 1)
        ]
        self._epochs = [-1] * trace.jobs

    def run(self, *, warm_up: float = 1.0) -> Result:
        """See ``Simulation.run``."""
        result = Result()
        for now, request in enumerate(self.trace.requests):
            seat = self._seats[request.job]
            if not seat.seated:
                seat.join(now)
            if self._epochs[request.job] != request.epoch:
                self._epochs[request.job] = request.epoch
                seat.begin(request.epoch, now)
            answer = seat.request(request.samples, now)
            self._keep(seat, answer, now)
            served = np.array([each.sample for each in answer.servings], np.int64)
            result.order.append((request.job, request.epoch, served))
            if request.time >= warm_up - 1e-9:
                hits = sum(each.form != W.NOWHERE for each in answer.servings)
                result.served += len(served)
                result.hits += hits
                result.reads += len(served) - hits
                result.refills += len(answer.refills)
                result.exchanged += len(np.setdiff1d(served, request.samples))
        return result

    def _keep(self, seat: Seat, answer: Answer, now: int) -> None:
        for made, served in ((answer.servings, True), (answer.refills, False)):
            for each in made:
                if each.keep and seat.reserve(each.sample, each.keep, ENTRY, now).granted:
                    seat.settle(each.sample, served=served)
