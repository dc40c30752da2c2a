"""How soon the first batch comes, at the start and again in the next epoch.

Two workers, batch 64, ready samples of 12 KB. First batch: from the call of the constructor until
`next` returns. Restart: from `iter(loader)` of the second epoch until its first batch, after the
first epoch was exhausted. Shutdown: until the loader is closed and its workers
are reaped. Runs
are processes of their own, alternating; medians. Importing either library is not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial

from benchmarks import workloads
from benchmarks.arms import Arm, headrace_arms
from benchmarks.clock import check_time, shared
from benchmarks.measure import Figures, Runs, interleaved
from benchmarks.overhead import exhaust
from benchmarks.report import Figure, Report, Table
from benchmarks.scope import Scope

BATCH = 64
SAMPLES = BATCH * 20


def run(report: Report, scope: Scope) -> None:
    """Persistent workers and not, forked and spawned."""
    arms = [Arm("torch"), *headrace_arms()]
    variants = [("fork", False), ("fork", True), ("spawn", True)]
    for method, persistent in shared(variants[: 2 if scope.quick else 3]):
        title = f"{method}, {'persistent' if persistent else 'new'} workers"
        scope.say(title)
        results = interleaved(
            {arm.name: partial(measure, arm, method, persistent) for arm in arms},
            repeats=3 if scope.quick else (11 if method == "fork" else 5),
            say=scope.say,
        )
        report.add(title, table(f"Milliseconds: {title}", results), results)
    once = import_time()
    report.notes.append(f"importing headrace.DataLoader once, torch being there: {once:.0f} ms, not included")


def table(title: str, results: dict[str, Runs]) -> Table:
    """Medians, and the first of the arms, which is torch's, over each."""
    base = next(iter(results.values()))
    columns: list[tuple[str, Figure]] = [
        ("first batch", "first"),
        ("restart", "restart"),
        ("shutdown", "shutdown"),
        ("torch / this, first", lambda runs: base.median("first") / runs.median("first")),
        ("torch / this, restart", lambda runs: base.median("restart") / runs.median("restart")),
    ]
    return Table.of(title, "loader", columns, results)


def import_time() -> float:
    """Milliseconds that the first use of headrace's loader takes to import, median of five."""
    code = (
        "import time, numpy, torch.utils.data as _; began = time.perf_counter(); "
        "from headrace import DataLoader; print((time.perf_counter() - began) * 1e3)"
    )
    times = []
    for _ in range(5):
        check_time()
        times.append(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return statistics.median(float(text) for text in times)


def measure(arm: Arm, method: str, persistent: bool) -> Figures:
    """One loader's life, in milliseconds."""
    dataset = workloads.Ready(SAMPLES, workloads.SMALL)
    began = time.perf_counter()
    with arm.open(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        persistent_workers=persistent,
        multiprocessing_context=method,
    ) as loader:
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - began
        for _ in batches:
            pass
        del batches
        again = time.perf_counter()
        batches = iter(loader)
        next(batches)
        restart = time.perf_counter() - again
        for _ in batches:
            pass
        del batches
        exhaust(loader, SAMPLES)
        ending = time.perf_counter()
    shutdown = time.perf_counter() - ending
    return {"first": first * 1e3, "restart": restart * 1e3, "shutdown": shutdown * 1e3}
