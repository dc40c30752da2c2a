"""Profile of each operation, function by function: the join of the processor's samples and a trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.trace.hardware import perf_events as E
from headrace.trace.hardware import records as R
from headrace.trace.hardware.join import join
from headrace.trace.hardware.symbols import Function, resolved
from headrace.trace.reader import Trace

Counters = dict[str, float]
Z = 1.96
"""Of the normal distribution: 95 % lie within."""


class MeasuredShare(NamedTuple):
    """A part of a whole and the 95 % interval it was measured to lie in."""

    value: float
    low: float
    high: float


def share(part: int, whole: int) -> MeasuredShare:
    """``part`` of ``whole`` samples: Wilson's interval, which is right for few samples and for all or none too."""
    if whole == 0:
        return MeasuredShare(0.0, 0.0, 1.0)
    p = part / whole
    middle = (p + Z * Z / (2 * whole)) / (1 + Z * Z / whole)
    reach = Z / (1 + Z * Z / whole) * sqrt(p * (1 - p) / whole + Z * Z / (4 * whole * whole))
    return MeasuredShare(
        p, 0.0 if part == 0 else max(0.0, middle - reach), 1.0 if part == whole else min(1.0, middle + reach)
    )


@dataclass(frozen=True)
class FunctionEntry:
    """A function within an operation."""

    function: Function
    samples: int
    share: MeasuredShare
    """Of the operation's samples."""
    belongs: MeasuredShare
    """Of the function's samples, those in this operation: how likely it is that the function works for it."""
    counters: Counters


@dataclass(frozen=True)
class OperationProfile:
    """The profile of one operation: all that was seen in it. Names in parentheses are no operations: they are the
    time around them.
    """

    name: str
    calls: int
    elapsed: float
    """Seconds of wall time in all, by the trace."""
    samples: int
    seconds: float
    """Of CPU time, by the samples."""
    parts: dict[str, float]
    """Shares of "python", "native", "kernel" and "unknown" code."""
    counters: Counters
    entries: list[FunctionEntry]
    """Most samples first."""

    @property
    def operates(self) -> bool:
        """True for an operation of the dataset, false for what runs outside any."""
        return not self.name.startswith("(")


@dataclass(frozen=True)
class Profile:
    """A run."""

    operations: list[OperationProfile]
    """Most CPU time first."""
    events: list[str]
    primary: str
    """The event whose samples are counted: cycles, or the clock where there are none."""
    samples: int
    lost: int
    kernel: bool
    frequency: int

    @property
    def unmapped(self) -> int:
        """Samples in code that no library accounts for."""
        parts = [entry for operation in self.operations for entry in operation.entries]
        return sum(entry.samples for entry in parts if entry.function.part == "unknown")


def beside(trace: str | Path) -> Path:
    """The file of samples that belongs to a trace."""
    return Path(f"{trace}.hw")


def profile(trace: Trace, records: R.Records) -> Profile:
    """Join the samples of a run and its trace, and name the functions."""
    names, place = join(trace, records.samples)
    functions, function = resolved(records)
    primary = "cycles" if "cycles" in records.events else E.TIME
    shape = len(names), max(len(functions), 1)
    cell = place * shape[1] + function
    counts: dict[str, npt.NDArray[Any]] = {}
    for number, event in enumerate(records.events):
        mine = records.samples["event"] == number
        weights = records.samples["period"][mine].astype(np.float64)
        scale = _scale(event, float(weights.sum()), records.totals)
        counts[event] = np.bincount(cell[mine], weights, shape[0] * shape[1]).reshape(shape) * scale
    chosen = records.samples["event"] == records.events.index(primary) if records.events else np.empty(0, bool)
    seen = np.bincount(cell[chosen], minlength=shape[0] * shape[1]).reshape(shape)
    table = trace.operations
    operations = []
    for at, name in enumerate(names):
        if not any(count[at].any() for count in counts.values()):
            continue
        rows = table[table["name"] == trace.number(name)]
        operations.append(
            OperationProfile(
                name=name,
                calls=len(rows),
                elapsed=float(rows["elapsed"].sum() / 1e9),
                samples=int(seen[at].sum()),
                seconds=float(counts[E.TIME][at].sum() / 1e9),
                parts=_parts(functions, seen[at]),
                counters={event: float(count[at].sum()) for event, count in counts.items()},
                entries=_entries(functions, seen, at, counts),
            )
        )
    operations.sort(key=lambda operation: -operation.seconds)
    return Profile(
        operations, records.events, primary, int(seen.sum()), records.lost, records.kernel, records.frequency
    )


def _scale(event: str, sampled: float, totals: Mapping[str, tuple[int, int, int]]) -> float:
    """The factor of a sample's period with which all samples make the exact total.

    Counters may have to take turns; the clock, which never does, says for how long there was something to count.
    """
    count, _, running = totals.get(event, (0, 0, 0))
    clock = totals.get(E.TIME, (0, 0, 0))[2]
    if not sampled or not count:
        return 1.0
    return count / sampled * (clock / running if 0 < running < clock else 1.0)


def _parts(functions: list[Function], seen: npt.NDArray[np.int64]) -> dict[str, float]:
    total = max(int(seen.sum()), 1)
    parts = {"python": 0.0, "native": 0.0, "kernel": 0.0, "unknown": 0.0}
    for at in np.flatnonzero(seen).tolist():
        parts[functions[at].part] += int(seen[at]) / total
    return parts


def _entries(
    functions: list[Function], seen: npt.NDArray[np.int64], at: int, counts: dict[str, npt.NDArray[Any]]
) -> list[FunctionEntry]:
    whole, everywhere = int(seen[at].sum()), seen.sum(axis=0)
    any_event = sum((count[at] for count in counts.values()), np.zeros(seen.shape[1]))
    found = [
        FunctionEntry(
            function=functions[column],
            samples=int(seen[at, column]),
            share=share(int(seen[at, column]), whole),
            belongs=share(int(seen[at, column]), int(everywhere[column])),
            counters={event: float(count[at, column]) for event, count in counts.items() if count[at, column]},
        )
        for column in np.flatnonzero(any_event).tolist()
    ]
    return sorted(found, key=lambda entry: (-entry.samples, entry.function))


def ratios(counters: Mapping[str, float]) -> dict[str, float]:
    """Derived figures: instructions per cycle, misses per thousand instructions, share of cycles stalled."""

    def over(part: str, whole: str, factor: float = 1.0) -> float | None:
        return counters[part] / counters[whole] * factor if part in counters and counters.get(whole) else None

    derived: dict[str, float | None] = {
        "IPC": over("instructions", "cycles"),
        "cache MPKI": over("cache-misses", "instructions", 1000),
        "branch MPKI": over("branch-misses", "instructions", 1000),
        "front-end bound": over("stalled-cycles-frontend", "cycles"),
        "back-end bound": over("stalled-cycles-backend", "cycles"),
        "faults/ms": over("page-faults", E.TIME, 1e6),
    }
    return {name: value for name, value in derived.items() if value is not None}


def data(found: Profile) -> dict[str, Any]:
    """The profile as plain values."""
    return vars(found) | {"operations": [_operation_data(operation) for operation in found.operations]}


def _operation_data(operation: OperationProfile) -> dict[str, Any]:
    values = vars(operation) | {"ratios": ratios(operation.counters)}
    values["cpu_seconds"] = values.pop("seconds")
    values["functions"] = [_function_data(entry) for entry in values.pop("entries")]
    return values


def _function_data(entry: FunctionEntry) -> dict[str, Any]:
    shares = {"share": entry.share._asdict(), "belongs": entry.belongs._asdict()}
    values = {**entry.function._asdict(), **vars(entry), **shares, "ratios": ratios(entry.counters)}
    del values["function"]
    return values
