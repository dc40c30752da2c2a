"""How long several jobs on the same pictures take together: torch, memory for files in front of it, a shared cache.

JPEG files of mixed sizes around 256 x 192, so that an epoch has many batches and still is short; decoded and resized to
120 at the shorter side, cropped to 112 and flipped at random. Jobs load and do nothing else, so that they are as fast
as the CPUs let them be; each has its share of the cores as workers. Two and four jobs run side by side, and a queue of
twelve two at a time. "Makespan" is the time from the first start to the last end, over torch's. Where nothing else is
said, files are read from the machine's page cache: decoding takes all the time. In the case with a slow storage all
jobs share one of a stated rate, which the dataset waits for, and every contender has memory of the same size: as a page
cache (what was read last), as MINIO (what was read first, for ever; encoded), as headrace's cache of decoded samples,
or of files. The first two are simulated by not waiting, which is the least they could cost. Caches are empty at first.
"Later" are epochs after a job's first; "reads" are files read from storage, those for nobody in particular included,
per sample that a job was given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import caches, costs, jobs, pictures
from benchmarks.arms import Arm
from benchmarks.measure import RunError
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from benchmarks.stored import Keeping, Pictures, Storage

SIDE, RESIZE, CROP, BATCH = 256, 120, 112, 16
ENTRY = RESIZE * (RESIZE * 4 // 3) * 3
"""Bytes of most decoded samples."""
BOUND = 0.55


@dataclass(frozen=True)
class Case:
    """Jobs, their data, and the memory there is for it."""

    name: str
    jobs: int
    at_once: int
    epochs: int
    room: float
    """Of the decoded dataset, the share that the cache has room for."""
    slow: bool = False
    """Storage gives each core a fraction of what it could decode."""


@dataclass(frozen=True)
class Contender:
    """A loader, and what is in front of the storage."""

    name: str
    library: str
    keeping: Keeping = "nothing"
    split: tuple[int, int, int] | None = None
    """Of the cache; None: there is none."""


CASES = {
    case.name: case
    for case in (
        Case("2 jobs", 2, 2, 4, 1.4),
        Case("4 jobs", 4, 4, 4, 1.4),
        Case("2 jobs, room for half", 2, 2, 4, 0.5),
        Case("12 jobs, two at a time", 12, 2, 2, 1.4),
        Case("2 jobs, slow storage", 2, 2, 4, 0.5, slow=True),
    )
}
TORCH = "torch"
DECODED = Contender("headrace, cache", "headrace", split=(0, 100, 0))
FAST = (
    Contender(TORCH, "torch"),
    Contender("torch, MINIO", "torch", "first"),
    Contender("headrace", "headrace"),
    DECODED,
)
SLOW = (
    Contender(TORCH, "torch"),
    Contender("torch, page cache", "torch", "newest"),
    *FAST[1:],
    Contender("headrace, cache of files", "headrace", split=(100, 0, 0)),
)


def run(report: Report, scope: Scope) -> None:
    """One table per case."""
    count = (320 if scope.quick else 960) * max(costs.cores() // 4, 1)
    with tempfile.TemporaryDirectory(prefix="headrace-makespan-") as place:
        folder = Path(place)
        scope.say(f"writing {count} files")
        size = pictures.write(folder, count, costs.cores(), side=SIDE)
        for name in scope.chosen(CASES):
            compare(report, CASES[name], folder, count, size, scope.say)


def compare(report: Report, case: Case, folder: Path, count: int, size: int, say: Callable[[str], None]) -> None:
    """One table: every contender once."""
    workers = max(costs.cores() // case.at_once, 1)
    room = int(case.room * count * ENTRY)
    rate = costs.cores() * 200 * size / count if case.slow else float("inf")
    title = (
        f"{case.name}: {case.epochs} epochs of {count} files, {size / count / 1e3:.0f} KB each, {workers} workers a job"
    )
    title += f"; memory {room / 1e6:.0f} MB, encoded {size / 1e6:.0f} MB, decoded about {count * ENTRY / 1e6:.0f} MB"
    if case.slow:
        title += f"; storage {rate / 1e6:.1f} MB/s"
    columns = [
        "contender",
        "makespan s",
        "of torch's",
        "images/s a job, first epoch",
        "later",
        "CPU ms / image, first",
        "later CPU",
        "reads / sample",
        "hits % later",
    ]
    table = Table(title, columns)
    found: dict[str, dict[str, Any]] = {}
    for one in SLOW if case.slow else FAST:
        say(f"{case.name}: {one.name}")
        try:
            found[one.name] = measure(one, case, Storage(count, rate, keeping=one.keeping, size=room), folder, count)
        except RunError as failure:
            report.notes.append(f"{case.name}: {one.name}: {failure}")
            continue
        figures = found[one.name]
        ratio = figures["makespan"] / found[TORCH]["makespan"] if TORCH in found else float("nan")
        keys = ("first", "later", "first cpu", "later cpu", "reads", "hits")
        table.add(one.name, figures["makespan"], ratio, *(figures[key] for key in keys))
        if one is DECODED and not case.slow:
            report.checks.append(Check(f"{case.name}, {one.name}, makespan over torch's", ratio, BOUND, True))
    report.tables.append(table)
    report.raw[title] = found
    busy = ", ".join(f"{figures['others']:.1f}" for figures in found.values())
    report.notes.append(f"{case.name}: cores that other processes kept busy, row by row: {busy}")


def measure(one: Contender, case: Case, storage: Storage, folder: Path, count: int) -> dict[str, Any]:
    """All jobs of a case."""
    dataset = Pictures(folder, count, storage, resize=RESIZE, crop=CROP)
    workers = max(costs.cores() // case.at_once, 1)
    arm = Arm(one.library, in_order=one.library == "torch", workers=workers)
    with ExitStack() as stack:
        room = int(case.room * count * ENTRY)
        cache = stack.enter_context(caches.cache(room, split=one.split)) if one.split else None
        queue = [jobs.Job(arm, dataset, case.epochs, BATCH, cache=cache, seed=seed).run for seed in range(case.jobs)]
        outcome = jobs.together(queue, case.at_once)
    first = [job["walls"][0] for job in outcome.jobs]
    later = [wall for job in outcome.jobs for wall in job["walls"][1:]]
    hits = float("nan")
    if one.split:
        hits = 100 * sum(hits_after_first(job["uses"]) for job in outcome.jobs) / (count * len(later))
    return {
        "makespan": outcome.makespan,
        "first": count * len(first) / sum(first),
        "later": count * len(later) / sum(later),
        "first cpu": 1e3 * sum(job["cpus"][0] for job in outcome.jobs) / (count * len(first)),
        "later cpu": 1e3 * sum(cpu for job in outcome.jobs for cpu in job["cpus"][1:]) / (count * len(later)),
        "reads": storage.reads / (count * case.epochs * case.jobs),
        "hits": hits,
        "others": outcome.others,
        "jobs": outcome.jobs,
    }


def hits_after_first(uses: list[dict[str, int]]) -> int:
    """Samples that a job was served from its cache after its first epoch."""
    return sum(uses[-1][form] - uses[0][form] for form in ("encoded", "decoded", "augmented"))
