"""A part of a trace: some of its runs. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import TraceError
from headrace.trace.decode import SCHEMAS
from headrace.trace.reader import Table, Trace


@dataclass(frozen=True)
class Loader:
    """The runs of one loader in one process, in the order of their epochs."""

    name: str
    process: int
    runs: tuple[int, ...]


def loaders(trace: Trace) -> tuple[Loader, ...]:
    """Every loader that delivered or made anything, in the order of their beginning."""
    used = set(np.unique(np.concatenate([trace.batches["run"], trace.samples["run"]])).tolist()) - {-1}
    found: dict[tuple[str, int], list[int]] = {}
    for number, run in enumerate(trace.runs):
        if number in used:
            found.setdefault((run.loader, run.process), []).append(number)
    every = [
        Loader(name, process, tuple(sorted(runs, key=lambda run: (trace.runs[run].epoch, run))))
        for (name, process), runs in found.items()
    ]
    return tuple(sorted(every, key=lambda loader: min(loader.runs)))


def of_runs(trace: Trace, runs: Iterable[int]) -> Trace:
    """The trace with the records of these runs only; runs, streams and names keep their numbers."""
    wanted = np.array(sorted(runs), np.int64)
    return _part(trace, {name: np.isin(getattr(trace, name)["run"], wanted) for name in SCHEMAS})


def within(trace: Trace, begin: int, end: int) -> Trace:
    """The trace with the records that began in that time; samples keep all their operations."""
    kept = {}
    for name in SCHEMAS:
        table: Table = getattr(trace, name)
        starts = table["time" if name in {"counters", "marks"} else "start"]
        kept[name] = (starts >= begin) & (starts < end)
    kept["operations"] = kept["samples"][trace.operations["sample"]]
    return _part(trace, kept)


def _part(trace: Trace, kept: dict[str, npt.NDArray[np.bool_]]) -> Trace:
    tables: dict[str, Table] = {name: getattr(trace, name)[which] for name, which in kept.items()}
    position = np.cumsum(kept["samples"]) - 1
    tables["operations"]["sample"] = position[tables["operations"]["sample"]]
    changed: dict[str, Any] = {"events": sum(len(table) for table in tables.values()), **tables}
    return replace(trace, **changed)


def chosen(trace: Trace, run: int | None = None, loader: str | None = None) -> Trace:
    """The trace of one run or of one loader. Raises ``TraceError`` that names those there are."""
    known = loaders(trace)
    if run is not None:
        if not any(run in each.runs for each in known):
            numbers = ", ".join(str(number) for each in known for number in each.runs) or "none"
            raise TraceError(f"{trace.path}: there is no run {run} in it (runs: {numbers})")
        trace = of_runs(trace, [run])
    if loader is not None:
        runs = [number for each in known if each.name == loader for number in each.runs]
        if not runs:
            names = ", ".join(dict.fromkeys(each.name for each in known)) or "none"
            raise TraceError(f"{trace.path}: there is no loader {loader!r} in it (loaders: {names})")
        trace = of_runs(trace, runs)
    return trace
