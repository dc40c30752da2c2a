"""What jobs ask of a cache, as a value: who wants which samples, in the order of time."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.cache.policies import NEVER

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Request:
    """One batch as a job's sampler drew it. Where policies exchange, a job's epoch is a permutation of the dataset."""

    job: int
    epoch: int
    samples: Indices
    time: float = 0.0
    """In epochs of the fastest job."""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests of several jobs on one dataset."""

    samples: int
    jobs: int
    requests: Sequence[Request]


def drawn(
    samples: int, speeds: Sequence[float], *, batch: int, epochs: int, apart: float = 0.0, seed: int = 0
) -> RequestTrace:
    """Jobs that shuffle, at these relative speeds, each ``apart`` of an epoch later than the one before.

    The fastest runs ``epochs`` epochs; all end when it does.
    """
    rng = np.random.default_rng(seed)
    streams = [_epochs(samples, batch, np.random.default_rng(rng.integers(1 << 62)), job) for job in range(len(speeds))]
    ready = [(job * apart, job) for job in range(len(speeds))]
    heapq.heapify(ready)
    requests = []
    while ready:
        time, job = heapq.heappop(ready)
        request = next(streams[job])
        requests.append(replace(request, time=time))
        time += len(request.samples) / samples * max(speeds) / speeds[job]
        if time < epochs - 1e-9:
            heapq.heappush(ready, (time, job))
    return RequestTrace(samples, len(speeds), requests)


def _epochs(samples: int, batch: int, rng: np.random.Generator, job: int) -> Iterator[Request]:
    epoch = 0
    while True:
        order = rng.permutation(samples)
        for first in range(0, samples, batch):
            yield Request(job, epoch, order[first : first + batch])
        epoch += 1


def due(trace: RequestTrace) -> list[Indices]:
    """For a trace of one job: for each request, when each of its samples is asked for next, counted in samples.

    A sample that is not asked for again is due ``NEVER``.
    """
    following = np.full(trace.samples, NEVER, np.int64)
    at = sum(len(request.samples) for request in trace.requests)
    found = []
    for request in reversed(trace.requests):
        at -= len(request.samples)
        found.append(following[request.samples])
        following[request.samples] = at + np.arange(len(request.samples))
    return found[::-1]
