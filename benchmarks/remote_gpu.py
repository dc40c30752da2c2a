"""A GPU beside two cores: how busy those keep it, and how busy it is with twelve cores of another host.

A Ray cluster on this machine, whose nodes and the trainer are bound to cores of their own: two for the trainer, its
workers and its fetching process, twelve for the other host. A sample takes 5 ms of a core and has 150 KB; a step of 64
takes as long as ten cores need for them. Busy is the time of the steps alone, of all the time from one moment, when
what there is is at work, to another. Runs are processes of their own, alternating; medians.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Figures, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from benchmarks.steps import FEATURES, Sleep, Step, Train

BATCH, SAMPLES, SIZE = 64, 6400, 150_528
SECONDS = 0.005
"""Of a core, for a sample."""
NEEDS, OWN, THEIRS = 10, 2, 12
"""Cores: that the GPU can use, of the trainer's host, of the other one."""
GOAL = 95.0


class Burned(torch.utils.data.Dataset[Any]):
    """Samples that take a core their time."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            sum(range(200))
        return torch.full((SIZE,), index % 251, dtype=torch.uint8)


@dataclass(frozen=True)
class Supply:
    """Who makes the samples."""

    name: str
    library: str = "headrace"
    workers: int = OWN
    lanes: int = 0
    """Of the other host."""


ARMS = (
    Supply("torch, 2 workers", "torch"),
    Supply("headrace, 2 workers"),
    Supply("headrace, 2 workers, 12 elsewhere", lanes=THEIRS),
    Supply("headrace, 1 worker, 12 elsewhere", workers=1, lanes=THEIRS),
    Supply("headrace, none here, 12 elsewhere", workers=0, lanes=THEIRS),
)
CASES = tuple(arm.name for arm in ARMS)


def run(report: Report, scope: Scope) -> None:
    """All arms, in one cluster; nothing without CUDA, or enough cores."""
    if not torch.cuda.is_available():
        raise LeftOut("torch sees no CUDA device here")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < OWN + THEIRS:
        raise LeftOut(f"{OWN + THEIRS} cores are needed, of which there are {len(cores)}")
    rest = cores[OWN + THEIRS :] or cores[:OWN]
    compare(report, scope, cores[:OWN], cores[OWN : OWN + THEIRS], rest, "cuda")


def compare(report: Report, scope: Scope, own: list[int], theirs: list[int], rest: list[int], device: str) -> None:
    """The table. ``rest``: cores for what belongs to the cluster and to neither of the two."""
    from tests.remote.running import cluster

    plan = {"head": {"cpus": 1, "cores": rest}, "left": {"cpus": THEIRS, "cores": theirs}}
    seconds, repeats = (10.0, 1) if scope.quick else (20.0, 2)
    arms = [arm for arm in ARMS if arm.name in scope.chosen(CASES)]
    with cluster(plan) as running:
        contest = {arm.name: partial(train, arm, running.address, own, device, seconds) for arm in arms}
        results = interleaved(contest, repeats=repeats, say=scope.say, method="spawn")
    table = Table(
        f"A GPU that needs {NEEDS} cores, beside {OWN}",
        ["loader", "GPU busy %", "samples/s", "ms per step", "of it needed", "made elsewhere %", "lanes"],
    )
    for arm in arms:
        runs = results[arm.name]
        columns = ("busy", "rate", "step", "needed", "share", "lanes")
        table.add(arm.name, *(runs.median(column) for column in columns))
        if arm.lanes:
            report.checks.append(Check(f"{arm.name}: GPU busy", runs.median("busy"), GOAL, False, "%"))
    report.add("busy", table, results)


def train(arm: Supply, address: str, own: list[int], device: str, seconds: float) -> Figures:
    """How busy the device is, once all that is to make samples does."""
    os.sched_setaffinity(0, own)
    from tests.remote.running import SETTINGS

    os.environ |= SETTINGS
    torch.set_num_threads(len(own))
    step = made(device, BATCH * SECONDS / NEEDS)
    needed = step.alone(BATCH)
    with opened(arm, address, device) as loader:
        ready(arm, loader, step)
        before = None if arm.library == "torch" else loader.stats()
        began, batches = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            batches += epoch(loader, step, device, began + seconds)
        step.wait()
        wall = time.perf_counter() - began
        after = None if before is None else loader.stats()
    share = lanes = 0.0
    if arm.lanes and before is not None and after is not None:
        share = 100 * (after.remote.samples - before.remote.samples) / (batches * BATCH)
        lanes = after.remote.lanes
    return {
        "busy": 100 * needed * batches / wall,
        "rate": batches * BATCH / wall,
        "step": wall / batches * 1e3,
        "needed": needed * 1e3,
        "share": share,
        "lanes": lanes,
    }


def made(device: str, seconds: float) -> Step:
    """A step that takes so long."""
    return Sleep(seconds) if device == "cpu" else Train(max(1, round(seconds / Train(1).alone(BATCH))))


def opened(arm: Supply, address: str, device: str) -> Any:
    """Its loader."""
    import headrace

    data = Burned(SAMPLES, SECONDS)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": arm.workers, "drop_last": True}
    if arm.workers:
        options["persistent_workers"] = True
    if arm.library == "torch":
        loader: Any = torch.utils.data.DataLoader(data, pin_memory=device != "cpu", **options)
        loader.__class__ = type("Closing", (type(loader),), {"__enter__": lambda self: self, "__exit__": _ended})
        return loader
    if arm.lanes:
        options["remote"] = headrace.Ray(cpus=arm.lanes, address=address, resources={"left": 1})
    return headrace.DataLoader(data, device=device, in_order=False if arm.workers else None, **options)


def _ended(self: Any, *_: object) -> None:
    self._iterator = None


def ready(arm: Supply, loader: Any, step: Step, patience: float = 60.0) -> None:
    """Return when everything that makes samples has begun, and the rates are known."""
    end, device = time.monotonic() + patience, "cpu" if isinstance(step, Sleep) else "cuda"
    epoch(loader, step, device, time.perf_counter() + 2)
    while arm.lanes and loader.stats().remote.lanes < arm.lanes:
        epoch(loader, step, device, time.perf_counter() + 1)
        if time.monotonic() > end:
            raise RuntimeError("the lanes elsewhere do not come up")
    epoch(loader, step, device, time.perf_counter() + 4)
    step.wait()


def epoch(loader: Any, step: Step, device: str, until: float) -> int:
    """Batches of an epoch, or of what of it is delivered until then."""
    batches, steps = 0, list[torch.cuda.Event]()
    for batch in loader:
        data = batch if batch.device.type == device else batch.to(device, non_blocking=True)
        step(data[:, : 3 * FEATURES].float())
        batches += 1
        if device != "cpu":  # as a trainer that looks at the loss of the step before: it is never far ahead
            steps.append(torch.cuda.Event())
            steps[-1].record()
            if len(steps) > 1:
                steps.pop(0).synchronize()
        if time.perf_counter() > until:
            break
    return batches
