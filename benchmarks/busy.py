"""How much of the time the device is busy, against what the CPUs could sustain.

MinatoLoader's workloads and stragglers, burned on the CPU (segmentation on volumes in files), two cores left to the
trainer. Each is scaled so that a batch costs the workers 80 % of the device's step, so the CPUs suffice on
average; and some so that it costs 125 %, so they do not. Each loader feeds the step, and "busy" is the step's own
time (measured with a batch that stays on the device) over the time between two steps, in the steady part of an epoch:
without the first two batches of each worker and the last one. Every sample must come once. The step trains a
multilayer perceptron on the device, as often as its length asks for; without CUDA it sleeps as long, and the rest is
the same.

In every repeat, before and after the loaders, the samples are made with no loader: as many processes, nothing collated
or moved. The median of their rates times the step is the share of time the device could be busy, "sustainable"; how
far the rates lie apart says how far to trust it. Beside them a process trains, because a trainer takes CPU time and
memory bandwidth from the samples of any loader: on a batch that stays on the device, once for every batch of samples.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bare, costs, steps
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.costs import Burning, Costly, Costs, Segmentation, Workload
from benchmarks.measure import Figures, Runs, interleaved, isolated
from benchmarks.report import Check, Report, Table, cell
from benchmarks.scope import Scope

ENOUGH, SHORT = 0.8, 1.25
"""What a batch costs the workers, over the step."""
STEP, ARRAYS_STEP = 0.025, 0.003
"""Seconds; volumes come three to a batch, and larger ones would fill the disk."""
STRAGGLERS = "0.3 % stragglers"
NAMES = ("object detection", "image segmentation", "speech 3 s, random", "speech 10 s, random", STRAGGLERS)
QUICK = (*(f"{name}, CPUs at 80 %" for name in NAMES), "speech 3 s, random, CPUs at 125 %")
FIRST, LAST = "no loader, first", "no loader, last"
"""Two arms that measure the same, on either side of the others."""
SUFFICIENT = 99.0
"""Percent that the CPUs sustain: from there on a device that waits is the loader's fault."""
CASES = tuple(f"{name}, CPUs at {share} %" for share in (80, 125) for name in NAMES)


@dataclass(frozen=True)
class Case:
    """A workload against a step."""

    name: str
    workload: Workload
    load: float
    workers: int
    seconds: float
    """About how long an epoch lasts."""

    @property
    def step(self) -> float:
        """What the device is to take for a batch."""
        return ARRAYS_STEP if self.workload.arrays else STEP

    @property
    def batches(self) -> int:
        """Of an epoch: enough for a steady part."""
        return max(8 * self.workers, round(self.seconds / self.step))

    @property
    def steady(self) -> range:
        """The batches that count."""
        return range(2 * self.workers, self.batches - self.workers)

    def costs(self) -> Costs:
        """Drawn, then scaled to the load."""
        drawn = self.workload.draw(self.batches * self.workload.batch, np.random.default_rng(7))
        wanted = self.load * self.step * self.workers / self.workload.batch
        return drawn * (wanted / drawn.mean())

    @contextmanager
    def dataset(self) -> Iterator[Costly]:
        """The samples, as long as their files are there."""
        if not self.workload.arrays:
            yield Burning(self.costs())
            return
        with tempfile.TemporaryDirectory(prefix="headrace-busy-") as folder:
            yield Segmentation(self.costs(), Path(folder))


def run(report: Report, scope: Scope) -> None:
    """One table per case."""
    workers = max(costs.cores() - 2, 2)
    kinds = {workload.name: workload for workload in costs.WORKLOADS}
    cases = []
    for name in scope.chosen(QUICK if scope.quick and not scope.only else CASES):
        kind, _, share = name.rpartition(", CPUs at ")
        load = {"80 %": ENOUGH, "125 %": SHORT}[share]
        cases.append(Case(name, kinds[kind], load, workers, 4.0 if scope.quick else 10.0))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    method = "spawn" if device == "cuda" else "fork"
    if device == "cpu":
        report.notes.append("no CUDA here: the step sleeps")
    rounds = isolated(partial(steps.calibrate, device, [case.step for case in cases]), method=method)["rounds"]
    for case, count in shared(zip(cases, rounds, strict=True)):
        scope.say(f"{case.name}: {case.batches} batches")
        with case.dataset() as dataset:
            fed = {arm.name: partial(measure, arm, case, dataset, device, count) for arm in contenders(workers)}
            alone = partial(unloaded, case, dataset, device, count)
            results = interleaved(
                {FIRST: alone, **fed, LAST: alone},
                repeats=1 if scope.quick else 3,
                say=scope.say,
                method=method,
                limit=60 + 10 * case.seconds,
            )
        add(report, case, results)


def contenders(workers: int) -> list[Arm]:
    """torch and headrace, in both orders."""
    return [Arm(library, order, workers) for library in ("torch", "headrace") for order in (True, False)]


def unloaded(case: Case, dataset: Any, device: str, rounds: float) -> Figures:
    """One epoch with no loader, beside a trainer that steps as often as there are batches of samples."""
    step = steps.make(device, rounds)
    needed = step.alone(case.workload.batch)
    inputs = steps.resident(device, case.workload.batch)
    alone = bare.sustain(dataset, case.workers, partial(step, inputs), case.workload.batch)
    step.wait()
    return {
        "rate": alone.rate / case.workload.batch,
        "cost": 1e3 * float(np.mean(alone.each)),
        "needed": 1e3 * needed,
    }


def measure(arm: Arm, case: Case, dataset: Any, device: str, rounds: float) -> Figures:
    """One epoch; the steady part of it counts."""
    step = steps.make(device, rounds)
    needed = step.alone(case.workload.batch)
    options = {"batch_size": case.workload.batch, "persistent_workers": True}
    if device != "cpu":
        options |= {"pin_memory": True} if arm.library == "torch" else {"device": device}
    came: list[Any] = []
    waits: list[float] = []
    began = ended = 0.0
    with arm.open(dataset, **options) as loader:
        batches = iter(loader)
        for number in range(case.batches):
            if number == case.steady.start:
                step.wait()
                began = time.perf_counter()
            if number == case.steady.stop:
                step.wait()
                ended = time.perf_counter()
            asked = time.perf_counter()
            inputs, *_, indices = (part.to(device, non_blocking=True) for part in next(batches))
            waits.append(time.perf_counter() - asked)
            # A view of the loader's memory would keep it from being used again; what is on the device is a copy.
            came.append(indices.tolist() if device == "cpu" else indices)
            step(inputs)
        step.wait()
    order = came if device == "cpu" else [indices.tolist() for indices in came]
    if sorted(index for indices in order for index in indices) != list(range(len(dataset))):
        raise RuntimeError("an epoch did not deliver every sample once")
    each = (ended - began) / len(case.steady)
    return {
        "busy": 100 * needed / each,
        "step": 1e3 * each,
        "needed": 1e3 * needed,
        "wait": 1e3 * float(np.mean(waits[case.steady.start : case.steady.stop])),
        "longest": 1e3 * max(waits[case.steady.start : case.steady.stop]),
    }


def add(report: Report, case: Case, results: dict[str, Runs]) -> None:
    """One table and its checks."""
    alone = Runs(results[FIRST].figures + results[LAST].figures)
    rate = alone.median("rate")
    columns = [
        "loader",
        "busy %",
        "sustainable %",
        "busy / sustainable",
        "ms per step",
        "of it needed",
        "waiting ms",
        "longest wait ms",
    ]
    title = (
        f"{case.name}: {case.batches} batches of {case.workload.batch}, {case.workers} workers, mean cost "
        f"{cell(alone.median('cost'))} ms; without a loader {cell(rate)} batches/s ({alone.spread('rate')} in "
        f"{len(alone.figures)} runs)"
    )
    table = Table(title, columns)
    for arm in contenders(case.workers):
        runs = results[arm.name]
        # The first of `min`'s arguments may be NaN and then is returned: what was not measured is no 100 %.
        sustainable = 100 * min(rate * runs.median("needed") / 1e3, 1.0)
        busy = runs.median("busy")
        figures = (runs.median(key) for key in ("step", "needed", "wait", "longest"))
        table.add(arm.name, busy, sustainable, busy / sustainable, *figures)
        report.checks += checks(case, arm, busy, sustainable)
    report.add(title, table, results)


def checks(case: Case, arm: Arm, busy: float, sustainable: float) -> list[Check]:
    """What is asked of an arm; both figures are percent of the time."""
    if arm.library != "headrace":
        return []
    free, enough = not arm.in_order, case.load < 1
    found = []
    if free or case.workload.arrays:
        found.append(Check(f"{case.name}, {arm.name}, busy / sustainable", busy / sustainable, 0.95, False))
    if free and enough and sustainable >= SUFFICIENT:
        found.append(Check(f"{case.name}, {arm.name}, busy", busy, 95.0, False, "%"))
    if not free and enough and case.workload.name == STRAGGLERS:
        found.append(Check(f"{case.name}, {arm.name}, busy", busy, 90.0, False, "%"))
    return found
