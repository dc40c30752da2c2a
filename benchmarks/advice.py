"""Is advice right? It is followed, twice at most, and what comes of it is compared with the best that a search finds.

Every workload is loaded with headrace's loader and the number of workers that it begins with; the report of that trace
says what to set, which is set, and so again. The search tries 1 to 64 workers. Rates are samples per second over a few
seconds, without the first batches; of two runs the faster one, since other programs only slow.

A few are also recorded beside programs that keep every core busy: cores that others have are not to look like waiting,
so that the advice is what it is without them.
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.clock import check_time, shared
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from headrace import DataLoader
from headrace.engine.trainer.cores import own_cores
from headrace.trace.calibrate import calibrate
from headrace.trace.reader import read
from headrace.trace.report import report as reported

BATCH = 16
SEARCHED = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 2
WITHIN = 0.9
BESIDE = ("computing", "half and half", "30 ms of waiting, no step")
"""Workloads that are recorded beside other programs, too."""


def compute(seconds: float) -> None:
    """Keep a core busy for so long, by this thread's own clock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def touch(megabytes: int) -> None:
    """Write and read memory that no cache holds."""
    values = np.ones(megabytes << 17)
    values[:: 1 << 9].sum()


@dataclass(frozen=True)
class Workload:
    """What a sample and a step take, in milliseconds, and the workers that its user had."""

    wait: float = 0.0
    compute: float = 0.0
    memory: int = 0
    """Megabytes."""
    step: float = 20.0
    begins: int = 2
    size: int = 64
    """Bytes of a sample."""
    copied: bool = False
    """The trainer copies every batch, as one without a device does for an augmentation of its own."""
    uneven: bool = False
    """One sample in ten takes ten times as long."""


CASES = {
    "30 ms of waiting": Workload(wait=30, step=40),
    "30 ms of waiting, no step": Workload(wait=30, step=0),
    "100 ms of waiting": Workload(wait=100, step=100),
    "a file and a little work": Workload(wait=5, compute=1, step=20),
    "half and half": Workload(wait=5, compute=5, step=20),
    "computing": Workload(compute=5, step=20, begins=1),
    "computing, enough workers": Workload(compute=2, step=40),
    "too many workers": Workload(compute=5, step=20, begins=16),
    "memory": Workload(memory=16, step=20, begins=1),
    "large samples": Workload(compute=1, size=1 << 20, step=20, begins=1),
    "batches that the trainer copies": Workload(wait=10, size=1 << 18, step=10, copied=True),
    "uneven waiting": Workload(wait=10, step=20, uneven=True),
    "a slow step": Workload(wait=5, compute=1, step=200),
    "in this process": Workload(wait=5, compute=1, step=20, begins=0),
}


class Made(Dataset[torch.Tensor]):
    """Samples of a workload."""

    def __init__(self, load: Workload, samples: int) -> None:
        self.load, self.samples = load, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        load = self.load
        times = 10 if load.uneven and index % 10 == 0 else 1
        if load.wait:
            time.sleep(times * load.wait / 1e3)
        if load.compute:
            compute(times * load.compute / 1e3)
        if load.memory:
            touch(load.memory)
        return torch.zeros(load.size, dtype=torch.uint8)


def rate(load: Workload, settings: dict[str, Any], seconds: float, trace: str | None = None) -> float:
    """Samples a second with these settings, after the first few batches."""
    check_time()
    dataset = Made(load, 1 << 20)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        loader = DataLoader(dataset, BATCH, shuffle=True, trace=trace, **settings)
        iteration = iter(loader)
    with loader:
        batches = iteration
        for _ in range(3):
            next(batches)
        began, taken = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            batch = next(batches)
            taken += len(batch)
            if load.copied:
                batch.clone()
            time.sleep(load.step / 1e3)
        spent = time.perf_counter() - began
        del batches, iteration, batch
    return taken / spent


def followed(load: Workload, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The settings after doing all that the report on a run with these says, of what a loader is given."""
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder) / "run.trace")
        rate(load, settings, seconds, trace)
        loader = reported(read(trace), calibrate(), int(own_cores())).loaders[0]
    changed = dict(settings)
    for advice in loader.advice:
        if match := re.fullmatch(r"(num_workers|prefetch_factor)=(\d+|None)", advice.setting):
            changed[match[1]] = None if match[2] == "None" else int(match[2])
        elif advice.setting == "in_order=False":
            changed["in_order"] = False
    return changed


def compute_for_ever() -> None:
    """What another program does."""
    while True:
        compute(1.0)


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many programs beside this one."""
    processes = [
        multiprocessing.get_context("fork").Process(target=compute_for_ever, daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def advised(name: str, seconds: float) -> tuple[int, int]:
    """The workers that one round advises, alone and beside a program for each core."""
    begins = {"num_workers": CASES[name].begins}
    alone = followed(CASES[name], begins, seconds)["num_workers"]
    with others(max(1, int(own_cores()))):
        return alone, followed(CASES[name], begins, seconds)["num_workers"]


def best_of(runs: int, measure: Callable[[], float]) -> float:
    """The highest of some measurements."""
    return max(measure() for _ in range(runs))


def run(report: Report, scope: Scope) -> None:
    """Each workload, followed and searched."""
    seconds, repeats = (1.0, 1) if scope.quick else (3.0, 2)
    headings = ["workload", "begins", "after 1", "after 2", "settings", "search", "of the best"]
    made = Table("Advice that is followed, samples/s", headings)
    report.tables.append(made)
    beside = Table("Workers that one round advises", ["workload", "alone", "beside a program for each core"])
    report.tables.append(beside)
    for name in shared(scope.chosen(CASES)):
        load = CASES[name]
        scope.say(name)
        settings: dict[str, Any] = {"num_workers": load.begins}
        rates = [best_of(repeats, lambda: rate(load, settings, seconds))]  # noqa: B023  (called at once)
        for _ in range(ROUNDS):
            settings = followed(load, settings, seconds)
            rates.append(best_of(repeats, lambda: rate(load, settings, seconds)))  # noqa: B023  (called at once)
        found = {workers: rate(load, {"num_workers": workers}, seconds) for workers in SEARCHED}
        best = max(found, key=lambda workers: found[workers])
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        made.add(name, *rates, told, f"{found[best]:.0f} with {best}", rates[-1] / max(found.values()))
        report.checks.append(
            Check(f"{name}: two rounds, of the best of a search", rates[-1] / found[best], WITHIN, False)
        )
        if name in BESIDE:
            alone, busy = advised(name, seconds)
            beside.add(name, alone, busy)
            told = f"{name}: workers advised beside other programs, of those without"
            report.checks.append(Check(told, min(alone, busy) / max(alone, busy), 0.75, False))
