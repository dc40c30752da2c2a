"""Study of a pipeline with several numbers of workers: changes in elapsed time, CPU time and counters."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.trace.analysis.spread import computed
from headrace.trace.hardware.profile import Profile, ratios
from headrace.trace.reader import Trace


@dataclass(frozen=True)
class StudyRun:
    """The program with one number of workers. ``operations``: CPU seconds and derived counters of each."""

    workers: int
    seconds: float
    """Elapsed, of the whole program."""
    loading: float
    """Elapsed, from the first thing recorded to the last: without imports."""
    cpu: float
    """Seconds of CPU time, of the program and all it started."""
    rate: float
    """Samples per second of loading."""
    operations: dict[str, dict[str, float]]


@dataclass
class Study:
    """All runs."""

    runs: list[StudyRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The operations of all runs, most CPU time first."""
        names = dict.fromkeys(name for run in self.runs for name in run.operations)
        return sorted(
            names, key=lambda name: -sum(run.operations.get(name, {}).get("cpu_seconds", 0) for run in self.runs)
        )

    @property
    def measures(self) -> list[str]:
        """Names of the measures besides CPU seconds."""
        found = dict.fromkeys(key for run in self.runs for values in run.operations.values() for key in values)
        return [name for name in found if name not in {"cpu_seconds", "elapsed", "calls"}]

    @property
    def cpu(self) -> dict[str, list[float | None]]:
        """CPU seconds of each operation, run by run."""
        return self.measure("cpu_seconds")

    def measure(self, name: str) -> dict[str, list[float | None]]:
        """A figure of each operation, run by run."""
        return {
            operation: [run.operations.get(operation, {}).get(name) for run in self.runs] for operation in self.names
        }

    def data(self) -> dict[str, Any]:
        return {"runs": [vars(run) for run in self.runs], "notes": self.notes}


def run_of(workers: int, seconds: float, cpu: float, trace: Trace, found: Profile | None) -> StudyRun:
    """Figures of a run. CPU time is the samples', or without them what the recorder measured, which is not all."""
    operations: dict[str, dict[str, float]] = {}
    table = trace.operations
    for number in np.unique(table["name"]).tolist():
        rows = table[table["name"] == number]
        values = {"calls": float(len(rows)), "elapsed": float(rows["elapsed"].sum() / 1e9)}
        share = computed(rows)
        if found is None and share is not None:
            values["cpu_seconds"] = share * values["elapsed"]
        operations[trace.names[number]] = values
    for operation in found.operations if found else []:
        if operation.name in operations:
            operations[operation.name] |= {"cpu_seconds": operation.seconds, **ratios(operation.counters)}
    loading = _loading(trace)
    return StudyRun(workers, seconds, loading, cpu, len(trace.samples) / loading if loading else 0.0, operations)


def _loading(trace: Trace) -> float:
    """Seconds between the beginning of the first sample or request for a batch and the end of the last."""
    tables = [table for table in (trace.samples, trace.batches) if len(table)]
    if not tables:
        return 0.0
    first = min(int(table["start"].min()) for table in tables)
    return (max(int((table["start"] + table["elapsed"]).max()) for table in tables) - first) / 1e9
