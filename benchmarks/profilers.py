"""What looking costs: headrace's trace and other profilers on the same image pipeline.

torchvision's ImageFolder with decode, RandomResizedCrop, flip and ToTensor, two persistent workers,
batch 32, no training step. Every profiler watches the same program with its usual settings for several
processes: py-spy 100 samples a second with subprocesses, scalene CPU only, viztracer with its workers,
torch.profiler around the measured epochs. Measured are full epochs after a first one, in processes of
their own, alternating; "wall" and "CPU" are against the same loader without a profiler. Storage is what
is on disk afterwards, per image. The last table takes an event apart: samples whose operations do
nothing, recorded and not recorded, CPU time of one thread.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import workloads
from benchmarks.measure import Figures, Runs, disturbance, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from headrace.observing.tracing_observer import TracingObserver
from headrace.trace.reader import read
from headrace.trace.trace_file import record

PROGRAM = [sys.executable, "-m", "benchmarks.profiled"]
PROFILERS: dict[str, tuple[str, list[str], list[str]]] = {
    "torch": ("torch", PROGRAM, []),
    "headrace": ("headrace", PROGRAM, []),
    "torch + headrace.traced": ("torch", PROGRAM, ["--trace", "{out}/run.trace"]),
    "headrace + trace=": ("headrace", PROGRAM, ["--trace", "{out}/run.trace"]),
    "torch + torch.profiler": ("torch", PROGRAM, ["--kineto", "{out}/kineto.json"]),
    "torch + py-spy": ("torch", ["py-spy", "record", "-s", "-f", "raw", "-o", "{out}/spy.txt", "--", *PROGRAM], []),
    "torch + scalene": (
        "torch",
        [sys.executable, "-m", "scalene", "run", "--cpu-only", "-o", "{out}/scalene.json", "-m", "benchmarks.profiled"],
        [],
    ),
    "torch + viztracer": (
        "torch",
        [sys.executable, "-m", "viztracer", "--quiet", "-o", "{out}/viz.json", "-m", "benchmarks.profiled"],
        [],
    ),
}


def run(report: Report, scope: Scope) -> None:
    """The contest, then one event taken apart."""
    count, epochs, repeats = (480, 2, 3) if scope.quick else (640, 4, 7)
    with tempfile.TemporaryDirectory(prefix="headrace-profilers-") as folder:
        workloads.write_images(Path(folder), count, uneven=False)
        # viztracer writes a third of a megabyte per image
        chosen = [name for name in PROFILERS if not (scope.quick and "viztracer" in name)]
        arms = {name: partial(measure, name, folder, epochs) for name in chosen if _there(name, report)}
        results = interleaved(arms, repeats=repeats, say=scope.say, limit=600)
    compare(report, results, count * (epochs + 1))
    apart(report, 25)


def _there(name: str, report: Report) -> bool:
    tool = name.rpartition(" + ")[2]
    if tool in {"py-spy", "scalene", "viztracer"} and shutil.which(tool, path=_bin()) is None:
        report.notes.append(f"{tool} is not installed, so not measured")
        return False
    return True


def _bin() -> str:
    return str(Path(sys.executable).parent)


def measure(name: str, folder: str, epochs: int) -> Figures:
    """One run of the program under one profiler."""
    loader, command, options = PROFILERS[name]
    with tempfile.TemporaryDirectory(prefix="headrace-profile-") as out:
        words = [word.format(out=out) for word in [*command, folder, str(epochs), loader, *options]]
        if words[0] == "py-spy":
            words[0] = str(Path(_bin()) / "py-spy")
        if "scalene" in words:
            words.insert(words.index("benchmarks.profiled") + 1, "--")
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=590)
        found = [line for line in done.stdout.splitlines() if line.startswith("measured:")]
        if not found:
            raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]!r}")
        figures = json.loads(found[0].removeprefix("measured:"))
        figures["bytes"] = sum(path.stat().st_blocks * 512 for path in Path(out).rglob("*") if path.is_file())
        trace = Path(out) / "run.trace"
        if trace.exists():
            figures["events"] = read(trace).events
            figures["bytes_per_event"] = figures["bytes"] / figures["events"]
    return figures


def compare(report: Report, results: dict[str, Runs], images: int) -> None:
    """Each profiler against the same loader without one."""
    columns = ["program", "s", "lowest – highest", "wall +%", "CPU s", "CPU +%", "bytes / image", "bytes / event"]
    table = Table("An image pipeline, watched", columns)
    for name, runs in results.items():
        base = results[PROFILERS[name][0]]
        wall, cpu = (100 * (runs.median(key) / base.median(key) - 1) for key in ("wall", "cpu"))
        table.add(
            name,
            runs.median("wall"),
            runs.spread("wall"),
            wall,
            runs.median("cpu"),
            cpu,
            runs.median("bytes") / images,
            runs.median("bytes_per_event"),
        )
        if "events" in (runs.figures or [{}])[0]:
            report.checks.append(Check(f"{name}, wall", wall, 1.0, True, "%"))
            report.checks.append(Check(f"{name}, CPU", cpu, 1.0, True, "%"))
            report.checks.append(Check(f"{name}, bytes per event", runs.median("bytes_per_event"), 32.0, True, "B"))
    report.add("pipeline", table, results)
    report.notes.append(disturbance(results))


class Nothing:
    """A dataset whose operations do nothing."""

    def __init__(self, operations: int) -> None:
        from torchvision.transforms import Compose  # a list of operations of another class is one operation

        self.transform = Compose([Identity() for _ in range(operations)]) if operations else None

    def __getitem__(self, index: int) -> Any:
        return index if self.transform is None else self.transform(index)


class Identity:
    """An operation."""

    def __call__(self, value: Any) -> Any:
        return value


def apart(report: Report, repeats: int) -> None:
    """Nanoseconds of CPU per event."""
    table = Table(
        "CPU per event", ["sample", "events", "not recorded ns", "recorded ns", "ns / event", "bytes / event"]
    )
    for operations in (0, 4, 12):
        with tempfile.TemporaryDirectory(prefix="headrace-events-") as out:
            plain, seen = [], []
            recording = record(Path(out) / "run.trace")
            for _ in range(repeats):
                plain.append(_loop(Nothing(operations).__getitem__, None))
                dataset = Nothing(operations)
                observer = TracingObserver(dataset, recording, worker=0)
                seen.append(_loop(observer.samples(observer.getter()), observer))
                observer.undo()
            trace = read(Path(out) / "run.trace")
        events = operations + 2
        cost = (median(seen) - median(plain)) / events
        label = f"{operations} operations" if operations else "opaque dataset"
        table.add(label, events, median(plain), median(seen), cost, trace.size / trace.events)
        report.checks.append(Check(f"CPU per event, {label}", cost / 1e3, 1.0, True, "µs"))
    report.tables.append(table)


def _loop(get: Callable[[int], Any], observer: TracingObserver | None, count: int = 5000) -> float:
    """Nanoseconds per sample, made and written to a row."""
    stream = None if observer is None else observer.stream
    start = time.thread_time_ns()
    for index in range(count):
        get(index)
        if stream is not None:
            began = time.monotonic_ns()
            stream.rows(index >> 5, index & 31, 1, began, time.monotonic_ns() - began)
    return (time.thread_time_ns() - start) / count
