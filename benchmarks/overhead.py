"""CPU time per sample that the loader itself costs.

Samples exist already (`workloads.Ready`), two workers, batch 64. Measured is user + system time
of the main process and everything it started, over full epochs, divided by the samples; every
run is a process of its own, runs of all loaders alternate, the table shows medians. "Steady"
epochs follow a warm-up epoch with persistent workers; "with start-up" is a new loader, one epoch
and its shutdown.
"""

from __future__ import annotations

from functools import partial

from benchmarks import workloads
from benchmarks.arms import Arm, headrace_arms, torch_arms
from benchmarks.clock import shared
from benchmarks.measure import Figures, Meter, Runs, disturbance, interleaved
from benchmarks.report import Check, Figure, Report, Table
from benchmarks.scope import Scope

BATCH = 64
SIZES = {"12 KB": workloads.SMALL, "150 KB": workloads.LARGE}
TARGETS = {
    ("12 KB", False): 8.0,
    ("150 KB", False): 30.0,
    ("12 KB", True): 16.0,
    ("150 KB", True): 38.0,
}


def run(report: Report, scope: Scope) -> None:
    """All arms at both sizes, and 12 KB samples with a label."""
    arms = [*torch_arms(), *headrace_arms(per_sample_seeds=False), *headrace_arms()]
    cases = [("12 KB", False), ("150 KB", False)] + ([] if scope.quick else [("12 KB", True)])
    for size, labelled in shared(cases):
        samples = 12_800 if scope.quick else {"12 KB": 51_200, "150 KB": 12_800}[size]
        title = f"{size}{' with a label' if labelled else ''}"
        scope.say(title)
        results = interleaved(
            {arm.name: partial(measure, arm, size, labelled, samples) for arm in arms},
            repeats=3 if scope.quick else 7,
            say=scope.say,
        )
        report.add(title, table(f"{title}, {samples:,} samples an epoch", results), results)
        if not labelled:
            report.checks += checks(size, arms, results)
        report.notes.append(f"{title}: {disturbance(results)}")


def measure(arm: Arm, size: str, labelled: bool, samples: int) -> Figures:
    """One arm: a cold epoch with start-up and shutdown, then steady epochs; µs per sample."""
    dataset = workloads.Ready(samples, SIZES[size], labelled=labelled)
    with Meter() as cold, arm.open(dataset, batch_size=BATCH) as loader:
        exhaust(loader, samples)
    with arm.open(dataset, batch_size=BATCH, persistent_workers=True) as loader:
        exhaust(loader, samples)
        with Meter() as steady:
            exhaust(loader, samples)
    scale = 1e6 / samples
    return {
        "cpu": steady.cpu * scale,
        "main": steady.main * scale,
        "wall": steady.wall * scale,
        "cold": cold.cpu * scale,
        "others": steady.others,
    }


def exhaust(loader: object, samples: int) -> None:
    """One epoch; every sample must have come."""
    seen = 0
    for batch in loader:  # type: ignore[attr-defined]
        seen += len(batch[0]) if isinstance(batch, list | tuple) else len(batch)
    if seen != samples:
        raise RuntimeError(f"{seen} samples came instead of {samples}")


def table(title: str, results: dict[str, Runs]) -> Table:
    """Medians, and each arm as a multiple of the cheapest torch."""
    best = cheapest(results)
    columns: list[tuple[str, Figure]] = [
        ("CPU µs", "cpu"),
        ("lowest – highest", lambda runs: runs.spread("cpu")),
        ("of it main", "main"),
        ("wall µs", "wall"),
        ("torch / this", lambda runs: best / runs.median("cpu")),
        ("CPU µs with start-up", "cold"),
    ]
    return Table.of(f"CPU per sample: {title}", "loader", columns, results)


def cheapest(results: dict[str, Runs]) -> float:
    """The lower of torch's medians: ratios are against torch at its best."""
    return min(runs.median("cpu") for name, runs in results.items() if name.startswith("torch"))


def checks(size: str, arms: list[Arm], results: dict[str, Runs]) -> list[Check]:
    """The targets at one size."""
    found = []
    for arm in arms:
        if arm.library == "headrace":
            cpu = results[arm.name].median("cpu")
            found.append(Check(f"{size}, {arm.name}", cpu, TARGETS[size, arm.per_sample_seeds], True, "µs"))
            if not arm.per_sample_seeds:
                found.append(Check(f"{size}, torch / {arm.name}", cheapest(results) / cpu, 4.0, False, "times"))
    return found
