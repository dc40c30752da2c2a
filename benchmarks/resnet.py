"""JPEG files of mixed sizes to ResNet-50 on a GPU, with and without a cache of decoded samples.

torchvision's ImageFolder: PIL's decoder, resized to 256 at the shorter side, then a random crop of 224 and a flip, as
bytes; floats are made and normalised on the device, for every loader alike. ResNet-50 trains in bfloat16 (autocast,
channels last, SGD), batch 128; the loaders have two workers less than there are cores. The cache, in shared memory, is
empty at first and has room for the whole dataset as decoded and resized bytes. Files are in the page cache.
"The GPU's own rate" is that of steps on a batch that stays on the device, measured in each run before its epochs; "of
the GPU's own" is a loader's rate over it. Epochs count whole, with their beginnings and ends: the first, in which
workers start and the cache fills, apart from the later ones. "Busy" is the share of time in which the driver saw a
kernel, in later epochs; CPU is that of all processes, training included. Every sample must come once per epoch. Without
CUDA a sleep stands for the training, and nothing said of a GPU holds.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import headrace
from benchmarks import caches, costs, pictures, steps
from benchmarks.arms import Arm
from benchmarks.measure import Figures, Meter, Runs, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

BATCH = 128
RESIZE, CROP = 256, 224
LATER = {"torch": 1, "headrace": 3}
"""Epochs after the first: without a cache they are all alike."""
ENTRY = RESIZE * RESIZE * 3 * 2
"""Bytes that a decoded sample takes, on the safe side: most are 4 : 3."""


@dataclass(frozen=True)
class Contender:
    """A loader, with the cache or without."""

    arm: Arm
    cached: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.arm.name}, cache" if self.cached else self.arm.name

    @property
    def later(self) -> int:
        """Epochs after the first."""
        return LATER["headrace" if self.cached else "torch"]


def run(report: Report, scope: Scope) -> None:
    """Loaders in turn, each in a process of its own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workers = max(costs.cores() - 2, 2)
    batches = (3 if scope.quick else 16) if device == "cpu" else 75 if scope.quick else 150
    if device == "cpu":
        report.notes.append("no CUDA here: the step sleeps")
    count = batches * BATCH
    contenders = [
        Contender(Arm("torch", True, workers)),
        Contender(Arm("torch", False, workers)),
        Contender(Arm("headrace", False, workers)),
        Contender(Arm("headrace", False, workers), cached=True),
        Contender(Arm("headrace", True, workers), cached=True),
    ]
    with tempfile.TemporaryDirectory(prefix="headrace-resnet-") as name, caches.cache(count * ENTRY) as cache:
        folder = Path(name)
        scope.say(f"writing {count} files")
        size = pictures.write(folder, count, costs.cores())
        results = interleaved(
            {each.name: partial(measure, each, folder, count, cache, device) for each in contenders},
            repeats=1 if scope.quick else 2,
            say=scope.say,
            method="spawn",
        )
    add(report, f"{count} files of {size / count / 1e3:.0f} KB, batches of {BATCH}, {workers} workers", results)


def measure(one: Contender, folder: Path, count: int, cache: headrace.Cache, device: str) -> Figures:
    """The first epoch, and the later ones together."""
    caches.clear(cache)
    step = steps.Sleep(BATCH / 1500) if device == "cpu" else steps.Classify("resnet50", BATCH, CROP, pixels=True)
    own = BATCH / step.alone(BATCH)
    dataset = pictures.folder_of(folder, resize=RESIZE, crop=CROP)
    dataset[0]  # what is imported on first use is not counted as the first epoch's, and workers inherit it
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "persistent_workers": True}
    options["multiprocessing_context"] = "fork"  # the default on Linux, but not in a process that was spawned
    if device != "cpu":
        options |= {"pin_memory": True} if one.arm.library == "torch" else {"device": device}
    if one.cached:
        options["cache"] = cache
    figures: dict[str, Any] = {"own": own}
    with one.arm.open(dataset, **options) as loader:
        with Meter() as first:
            epoch(loader, step, device, count)
        with watched(device) as busy, Meter() as later:
            waits = [epoch(loader, step, device, count) for _ in range(one.later)]
        if one.cached:
            use = loader.stats().cache
            figures |= {"hits": 100 * use.decoded / (count * one.later), "bytes": use.bytes}
    for name, meter, epochs in (("first", first, 1), ("later", later, one.later)):
        figures[name] = epochs * count / meter.wall
        figures[f"{name} cpu"] = 1e3 * meter.cpu / (epochs * count)
    return figures | {
        "share": 100 * figures["later"] / own,
        "busy": statistics.mean(busy) if busy else float("nan"),
        "wait": 1e3 * statistics.mean(wait for epoch_waits in waits for wait in epoch_waits),
        "others": later.others,
    }


def epoch(loader: Any, step: steps.Step, device: str, count: int) -> list[float]:
    """One epoch; how long each batch was waited for. The device has finished at its end."""
    came: list[Any] = []
    waits = []
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        inputs, indices = (part.to(device, non_blocking=True) for part in batch)
        waits.append(time.perf_counter() - asked)
        # A view of the loader's memory would keep it from being used again; what is on the device is a copy.
        came.append(indices.tolist() if device == "cpu" else indices)
        step(inputs)
    step.wait()
    if sorted(index for indices in came for index in torch.as_tensor(indices).tolist()) != list(range(count)):
        raise RuntimeError("an epoch did not deliver every sample once")
    return waits


@contextmanager
def watched(device: str) -> Iterator[list[float]]:
    """What the driver says of the GPU's use, in percent, a few times a second; filled at the end."""
    found: list[float] = []
    if device == "cpu":
        yield found
        return
    command = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    try:
        watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        watcher.terminate()
        for line in (watcher.communicate()[0] or "").splitlines()[1:]:
            with contextlib.suppress(ValueError):
                found.append(float(line))


def add(report: Report, title: str, results: dict[str, Runs]) -> None:
    """The table and its checks."""
    own = statistics.median(run["own"] for runs in results.values() for run in runs.figures)
    columns = [
        ("first epoch, images/s", "first"),
        ("later epochs, images/s", "later"),
        ("of the GPU's own %", "share"),
        ("GPU busy %", "busy"),
        ("waiting ms / batch", "wait"),
        ("CPU ms / image, first", "first cpu"),
        ("later", "later cpu"),
        ("hits % later", "hits"),
    ]
    table = Table.of(f"{title}; the GPU's own rate {own:.0f} images/s", "loader", columns, results)
    for name, runs in results.items():
        if name.endswith("cache"):
            report.checks.append(Check(f"{name}, of the GPU's own", runs.median("share"), 90.0, False, "%"))
    plain = results[Contender(Arm("headrace", False, max(costs.cores() - 2, 2))).name].median("first")
    for name in (name for name in results if name.endswith("cache")):
        filled = results[name].median("first") / plain
        report.checks.append(Check(f"{name}, first epoch over one without", filled, 0.97, at_most=False))
    report.add(title, table, results)
