"""Times of operations on samples, and the slow samples with the operation that made them so. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from headrace.trace.analysis.spread import Spread, computed, ratio, share, spread
from headrace.trace.format import FAR
from headrace.trace.reader import Table, Trace

WHOLE, OTHER, WRITE, COLLATE = "sample", "other (dataset code)", "write into the batch", "collate"
MOST_SLOW = 10


@dataclass(frozen=True)
class OperationFigures:
    """A row of the table of operations."""

    name: str
    kind: str
    """"operation": of the dataset; "loader": done by the loader, once a batch or write."""
    time: Spread
    under_10ms: float
    """Share of its calls that took less."""
    under_100us: float
    share: float
    """Of all preprocessing time."""
    cpu: float | None
    """Share of its time that the CPU clock of its thread advanced; None where that was not recorded."""


@dataclass(frozen=True)
class SlowSample:
    """A sample that was slow at least once."""

    index: str
    key: str | None
    """What its dataset calls it, where it says so."""
    times: int
    """How often it was slow in this trace."""
    seconds: float
    """The slowest of them."""
    operation: str
    """The operation that exceeded its median by most, then."""
    operation_seconds: float


class _TracePart(NamedTuple):
    name: str
    kind: str
    calls: Table
    """With ``start``, ``elapsed`` and ``cpu``; what is in no operation begins with its sample."""
    sample: Table | None
    """The position of the sample each call belongs to; None for work on a batch."""


def operations(trace: Trace) -> tuple[OperationFigures, ...]:
    """All of them, in the order in which a sample meets them."""
    found = list(_parts(trace))
    total = sum(int(part.calls["elapsed"].sum()) for part in found)
    return tuple(_row(part, total) for part in found)


def by_operation(trace: Trace) -> Iterator[tuple[str, Table]]:
    """Name and calls of each operation."""
    for part in _parts(trace):
        yield part.name, part.calls


def slow_samples(trace: Trace) -> tuple[int, tuple[SlowSample, ...]]:
    """The number of slow samples, and the slowest indices."""
    samples = trace.samples
    if not len(samples):
        return 0, ()
    elapsed = samples["elapsed"]
    slow = samples["slow"] | (elapsed > FAR * np.median(elapsed))
    excess = np.full(len(samples), -1.0)
    culprit = np.full(len(samples), "", object)
    spent = np.zeros(len(samples), np.int64)
    for part in _parts(trace):
        if part.sample is None or not len(part.calls):
            continue
        lengths = part.calls["elapsed"]
        over = lengths - np.median(lengths)
        worse = over > excess[part.sample]
        at = part.sample[worse]
        excess[at], culprit[at], spent[at] = over[worse], part.name, lengths[worse]
    worst: dict[str, SlowSample] = {}
    at = np.flatnonzero(slow)
    keys = _keys(trace)
    for position in at[np.argsort(-elapsed[at], kind="stable")].tolist():
        index = label(trace, samples[position])
        if index in worst:
            worst[index] = replace(worst[index], times=worst[index].times + 1)
        elif len(worst) < MOST_SLOW:
            seconds, operation_seconds = float(elapsed[position]) / 1e9, float(spent[position]) / 1e9
            worst[index] = SlowSample(index, keys.get(index), 1, seconds, str(culprit[position]), operation_seconds)
    return int(slow.sum()), tuple(worst.values())


def label(trace: Trace, sample: Any) -> str:
    """A sample's index, or its key where the index is no integer."""
    return str(int(sample["index"])) if sample["index"] >= 0 else trace.names[sample["key"]]


def _keys(trace: Trace) -> dict[str, str]:
    """Keys of the samples recorded with one, by index."""
    known = trace.samples[(trace.samples["key"] >= 0) & (trace.samples["index"] >= 0)]
    return {
        str(index): trace.names[key] for index, key in zip(known["index"].tolist(), known["key"].tolist(), strict=True)
    }


def _parts(trace: Trace) -> Iterator[_TracePart]:
    samples, calls = trace.samples, trace.operations
    inside, computing = (np.zeros(len(samples), np.int64) for _ in range(2))
    np.add.at(inside, calls["sample"], calls["elapsed"])
    np.add.at(computing, calls["sample"], np.maximum(0, calls["cpu"]))
    unknown = samples["cpu"] < 0
    unknown[calls["sample"][calls["cpu"] < 0]] = True
    for number in _in_order(calls):
        mine = calls[calls["name"] == number]
        yield _TracePart(trace.names[number], "operation", mine, mine["sample"])
    rest = samples.copy()
    rest["elapsed"] = np.maximum(0, samples["elapsed"] - inside)
    rest["cpu"] = np.where(unknown, -1, np.maximum(0, samples["cpu"] - computing))
    listed = samples["operations"] > 0
    for name, which in ((WHOLE, ~listed), (OTHER, listed)):
        at = np.flatnonzero(which)
        if len(at):
            yield _TracePart(name, "operation", rest[at], at)
    for name, table in ((WRITE, trace.rows), (COLLATE, trace.collations)):
        if table["elapsed"].any():  # else it only says where samples went
            yield _TracePart(name, "loader", table, None)


def _in_order(calls: Table) -> list[int]:
    """Names of operations by the place they usually have in a sample."""
    names, inverse = np.unique(calls["name"], return_inverse=True)
    places = np.bincount(inverse, calls["position"]) / np.bincount(inverse) if len(calls) else np.empty(0)
    return [int(names[at]) for at in np.argsort(places, kind="stable")]


def _row(part: _TracePart, total: int) -> OperationFigures:
    elapsed = part.calls["elapsed"]
    return OperationFigures(
        name=part.name,
        kind=part.kind,
        time=spread(elapsed),
        under_10ms=share(elapsed < 10_000_000),
        under_100us=share(elapsed < 100_000),
        share=ratio(elapsed.sum(), total),
        cpu=computed(part.calls),
    )
