"""How many samples a second get through when workers are many: is there a ceiling, and whose is it?

Samples of 12 KB that burn a fixed CPU time, per-worker seeds, persistent workers, full epochs after one to warm up;
torch beside it in the same run, in order (its faster way here) and not. Ideal is what the workers would make if
nothing but the samples cost anything: workers (at most the cores) over the cost. CPU is that of all processes per
sample, less what samples burn. Two workers, on 16 cores and more 4 and 14.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from benchmarks import workloads
from benchmarks.arms import Arm, headrace_arms
from benchmarks.clock import shared
from benchmarks.measure import Figures, Meter, Runs, disturbance, interleaved
from benchmarks.overhead import exhaust
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

COSTS = {"free": 0, "50 µs": 50, "200 µs": 200, "1 ms": 1000, "4 ms": 4000}
CASES = tuple(COSTS)
BATCHES = (32, 256)
SECONDS = 4.0
"""An epoch is about so long."""


class Burning(workloads.Ready):
    """Samples that exist already, after so many microseconds of work."""

    def __init__(self, size: int, cost: int) -> None:
        super().__init__(size, workloads.SMALL)
        self._cost = cost * 1000

    def __getitem__(self, index: int) -> Any:
        if self._cost:
            until = time.thread_time_ns() + self._cost
            while time.thread_time_ns() < until:
                pass
        return super().__getitem__(index)


def run(report: Report, scope: Scope) -> None:
    """Every cost, with both sizes of batch and every number of workers."""
    cores = len(os.sched_getaffinity(0))
    cases = [
        (name, workers, batch)
        for name in scope.chosen(CASES)
        for workers in ((4, 14) if cores >= 16 else (2,))
        for batch in BATCHES
    ]
    for name, workers, batch in shared(cases):
        title = f"{name}, {workers} workers, batch {batch}"
        scope.say(title)
        arms = [Arm("torch", in_order=order, workers=workers) for order in (True, False)]
        arms += headrace_arms(per_sample_seeds=False, workers=workers)
        size = samples_of(COSTS[name], min(workers, cores), batch, quick=scope.quick)
        runs = {arm.name: partial(measure, arm, COSTS[name], size, batch) for arm in arms}
        results = interleaved(runs, repeats=1 if scope.quick else 5, say=scope.say)
        made = table(f"{title}, {size:,} samples an epoch", results, COSTS[name], min(workers, cores))
        report.add(title, made, results)
        report.checks += checks(title, arms, results, COSTS[name])
        report.notes.append(f"{title}: {disturbance(results)}")


def samples_of(cost: int, lanes: int, batch: int, *, quick: bool) -> int:
    """Enough for an epoch of a few seconds, in whole batches."""
    rate = min(60_000.0, lanes * 1e6 / max(1, cost))
    wanted = int(rate * SECONDS / (4 if quick else 1))
    return max(8 * lanes, -(-wanted // batch)) * batch


def measure(arm: Arm, cost: int, samples: int, batch: int) -> Figures:
    """One arm: an epoch to warm up, then one that counts."""
    with arm.open(Burning(samples, cost), batch_size=batch, persistent_workers=True) as loader:
        exhaust(loader, samples)
        with Meter() as steady:
            exhaust(loader, samples)
    cpu = steady.cpu * 1e6 / samples
    return {
        "rate": samples / steady.wall,
        "cpu": cpu - cost,
        "main": steady.main * 1e6 / samples,
        "others": steady.others,
    }


def table(title: str, results: dict[str, Runs], cost: int, lanes: int) -> Table:
    """Medians, against torch's better one and the ideal."""
    out = Table(title, ["loader", "samples/s", "lowest – highest", "of torch's", "of ideal", "CPU µs", "of it main"])
    best = fastest(results)
    for name, runs in results.items():
        rate = runs.median("rate")
        ideal = rate * cost / 1e6 / lanes if cost else float("nan")
        out.add(name, rate, runs.spread("rate"), rate / best, ideal, runs.median("cpu"), runs.median("main"))
    return out


def fastest(results: dict[str, Runs]) -> float:
    """The higher of torch's medians: ratios are against torch at its best."""
    return max(runs.median("rate") for name, runs in results.items() if name.startswith("torch"))


def checks(title: str, arms: list[Arm], results: dict[str, Runs], cost: int) -> list[Check]:
    """Never below torch; from 200 µs on nine tenths of the ideal, where there is a core for every worker."""
    found = []
    for arm in arms:
        if arm.library == "headrace":
            rate = results[arm.name].median("rate")
            found.append(Check(f"{title}, {arm.name}, of torch's", rate / fastest(results), 1.0, False, "times"))
            if cost >= 200 and (arm.workers or 0) < len(os.sched_getaffinity(0)):
                share = 100 * rate * cost / 1e6 / (arm.workers or 1)
                found.append(Check(f"{title}, {arm.name}, of ideal", share, 90.0, False, "%"))
    return found
