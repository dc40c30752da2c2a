"""Hit rates of one to four real jobs that share a cache in shared memory, beside what the simulator says.

Loaders in processes of their own, each with a worker, at speeds 1 : 0.6 : 0.8 : 0.4 (as many as there are): they
sleep with each batch. Samples cost nothing and have one size, so that the cache holds exactly the stated share of them,
decoded. Counted is what each loader's `stats()` counts, from the end of the fastest job's second epoch to the end of
its seventh: one period of the speeds. The simulator gets the same number of samples and jobs, the same batches and
speeds; unlike the loaders it asks for nothing ahead of time. ODS is Seneca's sampling, with freed places filled by the
next misses: it is simulated only, since a real cache drops nothing before something better comes. The bound is
1 - (1 - share) / (sum of the speeds over the fastest). Every sample must come once per epoch of each job.
"""

from __future__ import annotations

import bisect
import math
import os
import time
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

import headrace
from benchmarks import caches
from benchmarks.hits import DRIFT, SHARES
from benchmarks.jobs import together
from benchmarks.measure import Figures, RunError
from benchmarks.report import Check, Report, Table
from benchmarks.requests import RequestTrace, drawn
from benchmarks.rules import Need, Opportunistic, Simulated
from benchmarks.scope import Scope
from benchmarks.simulate import simulate
from headrace.cache.backends import local_tables, shm
from headrace.cache.entries import entry
from headrace.caching.plans import codec

CASES = ("1 job", "2 jobs", "3 jobs", "4 jobs")
BATCH = 8
WARM_UP, PERIOD = 2, 5
SPARE = 2
"""Times the memory that entries may take: plenty is left for rounding, so that the share is exact."""
CLOSE = 4.0
"""Points by which measured and simulated hits may differ: loaders ask for some batches ahead of time."""


class Small(Dataset[Any]):
    """Samples that cost nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def fetch(self, index: int) -> int:
        """Nothing is stored."""
        return index

    def decode(self, encoded: int) -> tuple[torch.Tensor, int]:
        """16 KB."""
        return torch.full((16384,), encoded % 251, dtype=torch.uint8), encoded

    def augment(self, decoded: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        """As it is."""
        return decoded

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.augment(self.decode(self.fetch(index)))


def run(report: Report, scope: Scope) -> None:
    """One table for each number of jobs; all shares at once, since jobs mostly sleep."""
    samples, step = (400, 0.03) if scope.quick else (640, 0.03)
    for name in scope.chosen(CASES):
        speeds = DRIFT[: CASES.index(name) + 1]
        table = Table(
            f"{name}: {samples} samples in batches of {BATCH}; hits in percent, measured / simulated",
            ["policy", *(f"{share:.0%} cached" for share in SHARES), "reads / sample"],
        )
        trace = drawn(samples, speeds, batch=BATCH, epochs=WARM_UP + PERIOD, seed=1)

        def simulated(policy: Simulated, trace: RequestTrace = trace) -> list[float]:
            return [100 * simulate(trace, policy, share, warm_up=WARM_UP).hit_rate for share in SHARES]

        table.add("ODS, next misses", *(f"- / {said:.1f}" for said in simulated(Opportunistic(refills=False))), "")
        scope.say(name)
        try:
            real = measure(speeds, samples, step)
        except RunError as failure:
            report.notes.append(f"{name}: {failure}")
            continue
        dreamt = simulated(Need())
        cells = (f"{hits:.1f} / {said:.1f}" for hits, said in zip(real, dreamt, strict=True))
        table.add("need", *cells, " ".join(f"{1 - hits / 100:.2f}" for hits in real))
        report.raw[name] = {"measured": real, "simulated": dreamt}
        apart = max(abs(hits - said) for hits, said in zip(real, dreamt, strict=True))
        report.checks.append(Check(f"{name}, measured and simulated apart", apart, CLOSE, True, "points"))
        table.add("bound", *(f"{100 * (1 - (1 - share) / sum(speeds)):.1f}" for share in SHARES), "")
        report.tables.append(table)


def measure(speeds: tuple[float, ...], samples: int, step: float) -> list[float]:
    """Hits in percent, for each share."""
    dataset = Small(samples)
    size = entry.length(codec().describe((None, dataset.decode(samples - 1))))
    made = [
        headrace.Cache(
            f"shm://benchmark-{os.getpid()}-{at}",
            size=SPARE * round(share * samples) * local_tables.footprint(size),
            split=(0, 100, 0),  # or such cheap samples would not be kept
        )
        for at, share in enumerate(SHARES)
    ]
    rooms = [room_for(round(share * samples), size, samples) for share in SHARES]
    queue = [
        partial(follow, dataset, cache, room, step / speed, math.ceil((WARM_UP + PERIOD) * speed), job)
        for cache, room in zip(made, rooms, strict=True)
        for job, speed in enumerate(speeds)
    ]
    try:
        outcome = together(queue, len(queue)).jobs
    finally:
        for cache in made:
            caches.clear(cache)
    return [hit_rate(outcome[at : at + len(speeds)]) for at in range(0, len(outcome), len(speeds))]


def room_for(entries: int, size: int, samples: int) -> int:
    """Bytes that so many entries of a dataset of ``samples`` take of a cache in shared memory, and no more."""
    each = local_tables.footprint(size)
    return entries * each + each // 2 + shm.table_bytes(samples)


def follow(dataset: Small, cache: headrace.Cache, room: int, step: float, epochs: int, seed: int) -> Figures:
    """One job; after each batch, when it was and what was counted till then, and when each epoch ended."""
    caches.fill(room)
    torch.manual_seed(seed)  # forked jobs would all shuffle alike
    moments, hits, served, ends = [], [], [], []
    with headrace.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=1, in_order=False, persistent_workers=True, cache=cache
    ) as loader:
        for _ in range(epochs):
            came: list[int] = []
            for _, indices in loader:
                came += indices.tolist()
                time.sleep(step)
                use = loader.stats().cache
                moments.append(time.monotonic())
                hits.append(use.decoded)
                served.append(use.decoded + use.misses)
            if sorted(came) != list(range(len(dataset))):
                raise RuntimeError("an epoch did not deliver every sample once")
            ends.append(moments[-1])
    return {"moments": moments, "hits": hits, "served": served, "ends": ends}


def hit_rate(jobs: list[Figures]) -> float:
    """In percent, over one period of the fastest, which is the first."""
    began, ended = jobs[0]["ends"][WARM_UP - 1], jobs[0]["ends"][WARM_UP + PERIOD - 1]
    hits = served = 0
    for job in jobs:
        first, last = (bisect.bisect_right(job["moments"], moment) - 1 for moment in (began, ended))
        hits += job["hits"][last] - job["hits"][first]
        served += job["served"][last] - job["served"][first]
    return 100 * hits / served
