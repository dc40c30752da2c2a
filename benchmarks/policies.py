"""Automatic workers under each rule for their number: what it gives, where it settles, and whether it does.

Every run lasts a fixed time with ``num_workers=None``, persistent workers and completion order, and starts from as
many lanes as cores. Samples sleep (an input that waits), burn CPU time, or do half of each; with a slow trainer,
samples sleep and a step (slept) follows each batch that takes twice what the first lanes need to make one, so that no
lane has to be added. "Samples / s" is the rate of the second half, when a rule should have settled. "Changes" counts
how often the number of lanes changed, "late changes" those of the second half: a rule that never settles starts and
stops processes for ever. "Lanes" are those at the end; the line shows them over time. The last table has two ranks at
work at once, as a launcher with ``LOCAL_WORLD_SIZE=2`` would start them: lanes and rates are added up.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, get_args

import numpy as np

import headrace
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.costs import Burning, Priced, Sleeping
from benchmarks.measure import Figures, Meter, disturbance, interleaved
from benchmarks.report import Check, Figure, Report, Table, sparkline
from benchmarks.scope import Scope
from headrace.core.options import LanesRule

BATCH = 16
SAMPLES = 4096
COLUMNS: list[tuple[str, Figure]] = [
    ("samples / s", "rate"),
    ("lowest – highest", lambda runs: runs.spread("rate")),
    ("lanes", "lanes"),
    ("changes", "changes"),
    ("late changes", "late_changes"),
    ("CPU s / s", "cpu"),
    ("wait %", "wait"),
    ("others' cores", "others"),
    ("lanes over time", lambda runs: sparkline(runs.figures[0]["line"]) if runs.figures else ""),
]

RANKS = [
    ("samples / s", "rate"),
    ("lanes at first", "start"),
    ("most lanes", "most"),
    ("lanes at the end", "lanes"),
    ("faster / slower rank", "uneven"),
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
    """Samples of one kind and cost, and the trainer's step in seconds."""

    name: str
    kind: type[Priced]
    cost: float
    step: float = 0.0


MIXES = (
    Case("I/O-bound: 20 ms slept", Sleeping, 0.02),
    Case("CPU-bound: 4 ms burned", Burning, 0.004),
    Case("mixed: 5 ms slept, 5 ms burned", Mixed, 0.01),
    Case("slow trainer: 10 ms slept", Sleeping, 0.01, 2 * 0.01 * BATCH / len(os.sched_getaffinity(0))),
)


def run(report: Report, scope: Scope) -> None:
    """Both rules on every case."""
    seconds = 12.0 if scope.quick else 60.0
    for case in shared(MIXES):
        scope.say(case.name)
        arms = {rule: partial(measure, case, rule, seconds) for rule in get_args(LanesRule)}
        results = interleaved(arms, repeats=1 if scope.quick else 3, say=scope.say, limit=60 + 2 * seconds)
        table = Table.of(f"{case.name}, batch {BATCH}, {seconds:.0f} s", "rule", COLUMNS, results)
        report.add(case.name, table, results)
        report.notes.append(f"{case.name}: {disturbance(results)}")
        rates = {rule: runs.median("rate") for rule, runs in results.items()}
        report.checks.append(
            Check(f"{case.name}, climb / formula", rates["climb"] / rates["formula"], 0.95, False, "times")
        )
        late = results["climb"].median("late_changes")
        report.checks.append(Check(f"{case.name}, climb, late changes", late, seconds / 4, True))
    together(report, seconds, scope)


def together(report: Report, seconds: float, scope: Scope) -> None:
    """Two ranks that wait, and two that burn."""
    cores = len(os.sched_getaffinity(0))
    results = interleaved(
        {case.name: partial(two_ranks, case, seconds) for case in MIXES[:2]},
        repeats=1 if scope.quick else 3,
        say=scope.say,
        limit=60 + 2 * seconds,
    )
    table = Table.of(f"two ranks, {cores} cores, batch {BATCH}, {seconds:.0f} s", "samples", RANKS, results)
    report.add("two ranks", table, results)
    burning = results[MIXES[1].name].median("most")
    report.checks.append(Check("two ranks, CPU-bound, most lanes of both", burning, cores + 2, True))


def two_ranks(case: Case, seconds: float) -> Figures:
    """Both at once, each with workers of its own."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [context.Process(target=_rank, args=(case, seconds, theirs)) for _, theirs in pipes]
    for rank in ranks:
        rank.start()
    found = [ours.recv() for ours, _ in pipes]
    for rank in ranks:
        rank.join()
    return {
        "rate": sum(figures["rate"] for figures in found),
        "start": sum(figures["line"][0] for figures in found),
        "most": sum(max(figures["line"]) for figures in found),
        "lanes": sum(figures["lanes"] for figures in found),
        "uneven": max(figures["rate"] for figures in found) / min(figures["rate"] for figures in found),
        "others": min(figures["others"] for figures in found),
    }


def _rank(case: Case, seconds: float, pipe: Connection) -> None:
    pipe.send(measure(case, "climb", seconds))


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
