"""Batches to a CUDA device: the copy alone, and how long the GPU waits for input.

torch with pin_memory=True and `.to("cuda", non_blocking=True)` against headrace with
device="cuda"; batches of 64 x 3 x 224 x 224 floats, 38.5 MB. Copy: milliseconds per batch from one
`next` to the next with the tensor on the device (synchronised each batch), ready samples. Idle:
a small convolutional network is trained for an epoch; its steps' time with a batch that stays on
the device is what the GPU needs, the rest of the epoch is idle; ready samples, and uneven ones
(2 % cost 20 times the others). Runs are processes of their own, alternating; medians.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import workloads
from benchmarks.arms import Arm
from benchmarks.measure import Figures, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from benchmarks.steps import OnGpu

BATCH = 64


def run(report: Report, scope: Scope) -> None:
    """The copy, then training on both workloads; nothing without CUDA."""
    if not torch.cuda.is_available():
        raise LeftOut("torch sees no CUDA device here")
    workers = max(len(os.sched_getaffinity(0)) - 2, 2)
    arms = [
        Arm("torch", workers=workers),
        Arm("torch", workers=workers, in_order=False),
        Arm("headrace", workers=workers, in_order=True),
        Arm("headrace", workers=workers, in_order=False),
    ]
    batches = 60 if scope.quick else 300
    contest = partial(interleaved, repeats=2 if scope.quick else 5, say=scope.say, method="spawn")
    scope.say("copy")
    results = contest({arm.name: partial(copy, arm, batches) for arm in arms})
    table = Table(
        f"Batches of 38.5 MB to the device, {workers} workers",
        ["loader", "ms per batch", "GB/s", "torch / this"],
    )
    base = min(results[arm.name].median("batch") for arm in arms[:2])
    for name, runs in results.items():
        table.add(name, runs.median("batch"), runs.median("rate"), base / runs.median("batch"))
    report.add("copy", table, results)
    for uneven in (False, True):
        title = "uneven samples" if uneven else "ready samples"
        scope.say(f"training, {title}")
        results = contest({arm.name: partial(train, arm, batches, uneven) for arm in arms})
        table = Table(
            f"Training, {title}, {workers} workers",
            ["loader", "GPU idle %", "ms per step", "of it needed", "waiting in next() ms"],
        )
        for arm in arms:
            runs = results[arm.name]
            idle = runs.median("idle") * 100
            table.add(arm.name, idle, runs.median("step"), runs.median("needed"), runs.median("wait"))
            if arm.library == "headrace" and uneven:
                report.checks.append(Check(f"{title}, {arm.name}: GPU idle", idle, 5.0, True, "%"))
        report.add(title, table, results)


def arriving(arm: Arm, loader: Any) -> Iterator[torch.Tensor]:
    """The loader's batches on the device, each library in its own way."""
    for batch in loader:
        yield batch.to("cuda", non_blocking=True) if arm.library == "torch" else batch


def options(arm: Arm) -> dict[str, Any]:
    """The arguments by which each library gets batches to the device."""
    device = {"pin_memory": True} if arm.library == "torch" else {"device": "cuda"}
    return {
        "batch_size": BATCH,
        "shuffle": True,
        "persistent_workers": True,
        "drop_last": True,
        **device,
    }


def copy(arm: Arm, batches: int) -> Figures:
    """Milliseconds per batch to the device, nothing else on the GPU."""
    dataset = workloads.Ready(batches * BATCH, workloads.FLOAT_IMAGE)
    with arm.open(dataset, **options(arm)) as loader:
        for batch in arriving(arm, loader):
            batch.sum().item()
        began = time.perf_counter()
        size = 0
        for batch in arriving(arm, loader):
            torch.cuda.synchronize()
            size = batch.nbytes
        seconds = (time.perf_counter() - began) / batches
    return {"batch": seconds * 1e3, "rate": size / seconds / 1e9}


def train(arm: Arm, batches: int, uneven: bool) -> Figures:
    """Share of an epoch in which the GPU had nothing to do; milliseconds per step."""
    dataset = (
        workloads.Uneven(batches * BATCH, cheap=1e-3, dear=20e-3)
        if uneven
        else workloads.Ready(batches * BATCH, workloads.FLOAT_IMAGE)
    )
    step = Small()
    needed = step.alone(BATCH)
    with arm.open(dataset, **options(arm)) as loader:
        for batch in arriving(arm, loader):
            step(batch)
        torch.cuda.synchronize()
        wait, began = 0.0, time.perf_counter()
        asked = began
        for batch in arriving(arm, loader):
            wait += time.perf_counter() - asked
            step(batch)
            asked = time.perf_counter()
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
    return {
        "idle": max(1 - needed * batches / wall, 0.0),
        "step": wall / batches * 1e3,
        "needed": needed * 1e3,
        "wait": wait / batches * 1e3,
    }


class Small(OnGpu):
    """Forward, backward and update of a small network: some milliseconds on a large GPU."""

    warm, timed = 10, 50

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, 64, 2), (64, 128, 2), (128, 256, 2), (256, 256, 1)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.target = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def __call__(self, inputs: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(self.model(inputs), self.target)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def inputs(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch, 3, 224, 224, device="cuda")
