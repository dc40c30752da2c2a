"""Throughput of a real image pipeline: JPEG files to 3 x 224 x 224 floats.

torchvision's ImageFolder with decode, RandomResizedCrop, flip and ToTensor, batch 32, loader only
(no training step). torch with 1 to 4 workers, and out of order, alternates with headrace in both
orders, with 2 and with automatic workers; ratios are against whichever torch came out best, a
choice made after the fact and in torch's favour. Measured are full epochs with persistent
workers, after one warm-up epoch; files are in the page cache; medians.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import workloads
from benchmarks.arms import Arm, headrace_arms
from benchmarks.clock import shared
from benchmarks.measure import Figures, Meter, disturbance, interleaved
from benchmarks.overhead import exhaust
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

BATCH = 32


def run(report: Report, scope: Scope) -> None:
    """Even sizes, then uneven ones."""
    count = 640 if scope.quick else 1024
    importlib.import_module("torchvision")  # once, before the runs are forked
    for uneven in shared((False, True)):
        title = "uneven sizes" if uneven else "even sizes"
        with tempfile.TemporaryDirectory(prefix="headrace-images-") as folder:
            size = workloads.write_images(Path(folder), count, uneven=uneven)
            scope.say(f"{title}: {count} images, {size / 1e6:.1f} MB")
            compare(report, title, Path(folder), count, scope)


def compare(report: Report, title: str, folder: Path, count: int, scope: Scope) -> None:
    """All torch arms and all headrace arms in one interleaved contest, against the best torch."""
    arms = [
        *(Arm("torch", workers=workers) for workers in ((1, 2, 3) if scope.quick else (1, 2, 3, 4))),
        Arm("torch", in_order=False),
        *headrace_arms(),
        *headrace_arms(workers=None),
    ]
    runs_of = {arm.name: partial(measure, arm, folder, count) for arm in arms}
    results = interleaved(runs_of, repeats=3 if scope.quick else 7, say=scope.say)
    theirs = [arm.name for arm in arms if arm.library == "torch"]
    best = max(theirs, key=lambda name: results[name].median("rate"))
    columns = ["loader", "images/s", "lowest – highest", "against best torch", "CPU ms per image"]
    table = Table(f"Images per second: {title}", columns)
    for arm in arms:
        runs = results[arm.name]
        ratio = runs.median("rate") / results[best].median("rate")
        table.add(arm.name, runs.median("rate"), runs.spread("rate"), ratio, runs.median("cpu"))
        if arm.library == "headrace":
            report.checks.append(Check(f"{title}, {arm.name} / best torch", ratio, 1.0, False, "times"))
    report.add(title, table, results)
    report.notes.append(f"{title}: {disturbance(results)}")


def measure(arm: Arm, folder: Path, count: int) -> Figures:
    """Images per second and CPU per image over one full epoch."""
    dataset = workloads.image_folder(folder)
    with arm.open(dataset, batch_size=BATCH, shuffle=True, persistent_workers=True) as loader:
        exhaust(loader, count)
        time.sleep(0.1)  # let the workers of the warm-up epoch come to rest
        with Meter() as meter:
            exhaust(loader, count)
    return {"rate": count / meter.wall, "cpu": meter.cpu / count * 1e3, "others": meter.others}
