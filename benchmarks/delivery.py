"""What a batch costs the training process: `next()` and delivery on the device, while batches are ready.

torch with pin_memory=True and `.to("cuda", non_blocking=True)` against headrace with pin_memory=True and the
same call, and with device="cuda". Without CUDA, `next()` alone. The trainer sleeps between two batches, so
that the next one is ready when it asks: P50 and P99 of what it then waits, and the CPU time that the
training process uses for each batch, its threads included and its workers not. The epoch is longer than what is
measured, so that batches are made, pinned and sent all the while. Small: 64 samples of 64 floats and a label. Large:
64 x 3 x 224 x 224 floats, 38.5 MB. Runs are processes of their own, alternating; medians.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import workloads
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.measure import Figures, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

BATCH = 64
COUNTS = (2, 4, 8, 14)
CASES = (*(f"small, {workers} workers" for workers in COUNTS), "large")
SHAPES = {"small": ((64,), torch.float32), "large": workloads.FLOAT_IMAGE}
PAUSE = {"small": 2e-3, "large": 40e-3}
BATCHES = {"small": (300, 1500), "large": (25, 100)}
AHEAD = {"small": 4, "large": 2}
"""Batches that are made ahead for each worker."""
WAYS = ("pin_memory", "device")
LIMIT_P50, LIMIT_CPU = 0.25, 0.3


def run(report: Report, scope: Scope) -> None:
    """Every number of workers that leaves the trainer a core for the small size, the most for the large one."""
    cuda = torch.cuda.is_available()
    cores = len(os.sched_getaffinity(0))
    counts = [workers for workers in COUNTS if workers <= max(2, cores - 1)]
    method = "spawn" if cuda else "fork"
    contest = partial(interleaved, repeats=1 if scope.quick else 5, say=scope.say, method=method)
    for case in shared(scope.only or CASES):
        size, workers = case.partition(",")[0], counts[-1] if case == "large" else COUNTS[CASES.index(case)]
        if workers not in counts:
            report.notes.append(f"{case}: left out, the machine has {cores} cores")
            continue
        scope.say(case)
        arms = named(workers, cuda=cuda)
        results = contest({name: partial(measure, arm, way, size, scope.quick) for name, (arm, way) in arms.items()})
        table = Table(
            f"{size}, {workers} workers: next() and delivery {'on the device' if cuda else '(no CUDA: next() alone)'}",
            ["loader", "P50 ms", "P99 ms", "CPU ms a batch", "torch's P50 / this"],
        )
        base = results["torch"].median("p50")
        for name, runs in results.items():
            p50, cpu = runs.median("p50"), runs.median("cpu")
            table.add(name, p50, runs.median("p99"), cpu, base / p50)
            if cuda and size == "small" and "device" in name:
                report.checks.append(Check(f"{name}, {workers} workers: P50", p50, LIMIT_P50, True, "ms"))
                report.checks.append(Check(f"{name}, {workers} workers: CPU", cpu, LIMIT_CPU, True, "ms"))
        report.add(case, table, results)


def named(workers: int, *, cuda: bool) -> dict[str, tuple[Arm, str | None]]:
    """The contenders, and how each gets its batches to the device."""
    arms: dict[str, tuple[Arm, str | None]] = {"torch": (Arm("torch", workers=workers), "pin_memory" if cuda else None)}
    for order in (True, False):
        arm = Arm("headrace", workers=workers, in_order=order)
        for way in WAYS if cuda else (None,):
            name = f"headrace, {'sampler' if order else 'completion'} order"
            arms[name if way is None else f"{name}, {way}"] = arm, way
    return arms


def measure(arm: Arm, way: str | None, size: str, quick: bool) -> Figures:
    """Milliseconds: P50 and P99 of one batch, CPU of this process per batch."""
    batches = BATCHES[size][not quick]
    beyond = 2 * AHEAD[size] * (arm.workers or 1)
    dataset = workloads.Ready((batches + 20 + beyond) * BATCH, SHAPES[size], labelled=True)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "prefetch_factor": AHEAD[size]}
    if way is not None:
        options |= {"pin_memory": True} if way == "pin_memory" else {"device": "cuda"}
    with arm.open(dataset, **options) as loader:
        iterator = iter(loader)
        took, cpu = [], 0.0
        for number in range(batches + 20):
            time.sleep(PAUSE[size])
            if number == 20:  # the first ones warm memory and caches up
                cpu = time.process_time()
            began = time.perf_counter()
            batch = next(iterator)
            if way == "pin_memory":
                batch = [tensor.to("cuda", non_blocking=True) for tensor in batch]
            took.append(time.perf_counter() - began)
        busy = time.process_time() - cpu
        if way is not None:
            torch.cuda.synchronize()
        del iterator, batch
    p50, p99 = np.percentile(took[20:], [50, 99]) * 1e3
    return {"p50": float(p50), "p99": float(p99), "cpu": busy / batches * 1e3}
