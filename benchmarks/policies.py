"""Automatic workers under each rule for their number: what it gives, where it settles, and whether it does.

Every run lasts a fixed time with ``num_workers=None``, persistent workers and completion order, and starts from as
many lanes as cores. Samples sleep (an input that waits), burn CPU time, or do half of each; with a slow consumer,
samples sleep and a step (slept) follows each batch that takes twice what the first lanes need to make one, so that no
lane has to be added. "Samples / s" is the rate of the second half, when a rule should have settled. "Changes" counts
how often the number of lanes changed, "late changes" those of the second half: a rule that never settles starts and
stops processes for ever. "Lanes" are those at the end; the line shows them over time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import numpy as np

import headrace
from benchmarks.arms import Arm
from benchmarks.costs import Burning, Priced, Sleeping
from benchmarks.measure import Figures, Meter, disturbance, interleaved
from benchmarks.report import Check, Report, Table, sparkline
from headrace.core.options import LanesRule

BATCH = 16
SAMPLES = 4096
COLUMNS = [
    "rule",
    "samples / s",
    "lowest – highest",
    "lanes",
    "changes",
    "late changes",
    "CPU s / s",
    "wait %",
    "others' cores",
    "lanes over time",
]


class Mixed(Priced):
    """Half of the cost is slept, half burned."""

    def spend(self, seconds: float) -> None:
        time.sleep(seconds / 2)
        until = time.thread_time() + seconds / 2
        while time.thread_time() < until:
            pass


@dataclass(frozen=True)
class Case:
    """Samples of one kind and cost, and the consumer's step in seconds."""

    name: str
    kind: type[Priced]
    cost: float
    step: float = 0.0


CASES = (
    Case("I/O-bound: 20 ms slept", Sleeping, 0.02),
    Case("CPU-bound: 4 ms burned", Burning, 0.004),
    Case("mixed: 5 ms slept, 5 ms burned", Mixed, 0.01),
    Case("slow consumer: 10 ms slept", Sleeping, 0.01, 2 * 0.01 * BATCH / len(os.sched_getaffinity(0))),
)


def run(*, quick: bool, say: Callable[[str], None]) -> Report:
    """Both rules on every case."""
    report = Report("policies", __doc__ or "", quick=quick)
    seconds = 12.0 if quick else 60.0
    for case in CASES:
        say(case.name)
        arms = {rule: partial(measure, case, rule, seconds) for rule in get_args(LanesRule)}
        results = interleaved(arms, repeats=1 if quick else 3, say=say, limit=60 + 2 * seconds)
        table = Table(f"{case.name}, batch {BATCH}, {seconds:.0f} s", COLUMNS)
        for rule, runs in results.items():
            names = ("lanes", "changes", "late_changes", "cpu", "wait", "others")
            table.add(
                rule,
                runs.median("rate"),
                runs.spread("rate"),
                *(runs.median(name) for name in names),
                sparkline(runs.figures[0]["line"]) if runs.figures else "",
            )
        report.tables.append(table)
        report.raw[case.name] = {rule: vars(runs) for rule, runs in results.items()}
        report.notes.append(f"{case.name}: {disturbance(results)}")
        rates = {rule: runs.median("rate") for rule, runs in results.items()}
        report.checks.append(
            Check(f"{case.name}, climb / formula", rates["climb"] / rates["formula"], 0.95, False, "times")
        )
        late = results["climb"].median("late_changes")
        report.checks.append(Check(f"{case.name}, climb, late changes", late, seconds / 4, True))
    return report


def measure(case: Case, rule: LanesRule, seconds: float) -> Figures:
    """Epoch after epoch until time is up."""
    arm = Arm("headrace", in_order=False, workers=None, scheduling=headrace.Scheduling(lanes=rule))
    lanes: list[tuple[float, int]] = []
    late = 0
    with arm.open(case.kind(np.full(SAMPLES, case.cost)), batch_size=BATCH, persistent_workers=True) as loader:
        batches = endless(loader)
        next(batches)
        before = loader.stats().wait_seconds
        with Meter() as meter:
            began = time.perf_counter()
            while (elapsed := time.perf_counter() - began) < seconds:
                size = next(batches)
                late += size if elapsed > seconds / 2 else 0
                lanes.append((elapsed, loader.stats().lanes))
                if case.step:
                    time.sleep(case.step)
        waited = loader.stats().wait_seconds - before
    changes = [moment for (_, one), (moment, other) in pairwise(lanes) if one != other]
    ticks = [seconds * tick / 40 for tick in range(40)]
    return {
        "rate": late / (seconds / 2),
        "lanes": lanes[-1][1],
        "changes": len(changes),
        "late_changes": sum(moment > seconds / 2 for moment in changes),
        "cpu": meter.cpu / meter.wall,
        "wait": 100 * waited / meter.wall,
        "others": meter.others,
        "line": [max((pair for pair in lanes if pair[0] <= tick), default=lanes[0])[1] for tick in ticks],
    }


def endless(loader: headrace.DataLoader[Any]) -> Iterator[int]:
    """The size of each batch, epoch after epoch."""
    while True:
        for _, indices in loader:
            yield len(indices)
