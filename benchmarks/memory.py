"""Whether memory and descriptors stay flat while many samples pass.

Ready samples of 12 KB with labels, batch 64, two workers, in a spawned process of its own; along
the way the proportional set size of main process and workers, their shared mappings and the open
descriptors are read from /proc. Flatness is the mean of the last quarter over the mean of the
first, whose start-up reading is left out. Shared memory at its peak is what the slab takes.
"""

from __future__ import annotations

import gc
from dataclasses import asdict
from functools import partial
from statistics import fmean

from benchmarks import workloads
from benchmarks.arms import Arm, headrace_arms
from benchmarks.measure import Figures, RunError, isolated, tree_memory
from benchmarks.report import Check, Report, Table, sparkline
from benchmarks.scope import Scope

BATCH = 64
READINGS = 48


def run(report: Report, scope: Scope) -> None:
    """One pass of all samples through each loader, epoch after epoch."""
    samples = 20_000 if scope.quick else 200_000
    title = f"Memory of the process tree over {samples:,} samples"
    columns = [
        "loader",
        "PSS MB",
        "last / first quarter",
        "peak shared MB",
        "descriptors",
        "left after close",
    ]
    table = Table(title, columns)
    course = Table("Over time, each from 0 to its peak", ["loader", "PSS", "shared", "descriptors"])
    for arm in [Arm("torch"), Arm("torch", sharing="file_system"), *headrace_arms()]:
        scope.say(arm.name)
        try:
            figures = isolated(partial(measure, arm, samples), method="spawn", limit=900)
        except RunError as failure:
            report.notes.append(f"{arm.name}: {failure}")
            table.add(arm.name, "failed")
            continue
        report.raw[arm.name] = figures
        readings = figures["readings"]
        total = [reading["total"] / 1e6 for reading in readings]
        shared = [reading["shared"] / 1e6 for reading in readings]
        files = [float(reading["descriptors"]) for reading in readings]
        table.add(
            arm.name,
            fmean(total),
            flatness(total),
            max(shared),
            f"{min(files):.0f} – {max(files):.0f}",
            left_over(figures["before"], figures["after"]),
        )
        if not report.tables:  # what is finished is kept, where time runs out
            report.tables += [table, course]
        course.add(arm.name, *(sparkline(values[::2]) for values in (total, shared, files)))
        if arm.library == "headrace":
            report.checks.append(Check(f"{arm.name}, PSS last / first quarter", flatness(total), 1.02, True))
            report.checks.append(
                Check(
                    f"{arm.name}, descriptors last / first quarter",
                    flatness(files),
                    1.0,
                    True,
                )
            )


def measure(arm: Arm, samples: int) -> Figures:
    """Readings along epochs of 20,000 samples, and before and after the loader's life."""
    epoch = 20_000
    dataset = workloads.Ready(epoch, workloads.SMALL, labelled=True)
    every = max(samples // BATCH // READINGS, 1)
    before = asdict(tree_memory())
    readings = []
    batches = 0
    with arm.open(dataset, batch_size=BATCH, shuffle=True, persistent_workers=True) as loader:
        for _ in range(max(samples // epoch, 1)):
            for _batch in loader:
                batches += 1
                if batches % every == 0:
                    readings.append(asdict(tree_memory()))
        stats = dict(loader.stats().as_dict()) if hasattr(loader, "stats") else None
    del loader
    _batch = None
    gc.collect()
    return {"before": before, "readings": readings, "after": asdict(tree_memory()), "stats": stats}


def left_over(before: dict[str, int], after: dict[str, int]) -> str:
    """What a closed loader still holds: shared memory and descriptors."""
    shared = (after["shared"] - before["shared"]) / 1e6
    return f"{shared:.1f} MB, {after['descriptors'] - before['descriptors']:+d} fd"


def flatness(values: list[float]) -> float:
    """Mean of the last quarter over mean of the first, without the first reading."""
    quarter = max(len(values) // 4, 2)
    return fmean(values[-quarter:]) / fmean(values[1:quarter] or values[:1])
