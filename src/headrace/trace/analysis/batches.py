"""Table of delivered batches: when each was begun, ready, asked for and received. Pure."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.trace.reader import Table, Trace

_COMMON = ("run", "batch", "stream", "start", "elapsed")
FIELDS = [
    ("run", "i4"),
    ("batch", "i8"),
    ("stream", "i4"),
    ("samples", "i4"),
    ("asked", "i8"),
    ("got", "i8"),
    ("wait", "i8"),
    ("made", "?"),
    ("begun", "i8"),
    ("ready", "i8"),
    ("maker", "i4"),
    ("work", "i8"),
    ("delay", "i8"),
    ("blocked", "i8"),
    ("early", "?"),
]
"""``wait`` = got - asked; ``work``: the time of its samples, their writing and collation added up (T1); ``begun``: its
first sample; ``ready``: the end of the last of all that, done by the stream ``maker``; ``delay``: from ready to got;
``blocked``: the part of the wait during which a batch that came later was ready; ``early``: it was ready before the one
that was delivered before it. Where ``made`` is false nobody recorded its making, and these are zero."""


def delivered(trace: Trace) -> Table:
    """Every batch that a trainer got, run by run in the order of delivery."""
    source = trace.batches
    order = np.lexsort((source["start"], source["run"]))
    source = source[order]
    table = np.zeros(len(source), FIELDS)
    for field in ("run", "batch", "stream", "samples"):
        table[field] = source[field]
    table["asked"], table["wait"] = source["start"], source["elapsed"]
    table["got"] = table["asked"] + table["wait"]
    _make(table, making(trace))
    same = table["run"][1:] == table["run"][:-1]
    known = table["made"][1:] & table["made"][:-1]
    table["early"][1:] = same & known & (table["ready"][1:] < table["ready"][:-1])
    _block(table)
    return table


def making(trace: Trace) -> Table:
    """The table of all work that contributed to a batch; ``samples`` is 1 for a sample, 0 for a write or a
    collation.
    """
    parts = []
    for table in (trace.samples, trace.rows, trace.collations):
        source = table[table["batch"] >= 0]  # the rest landed nowhere
        part = np.zeros(len(source), [(name, "i8") for name in (*_COMMON, "end", "samples")])
        for field in _COMMON:
            part[field] = source[field]
        part["end"], part["samples"] = source["start"] + source["elapsed"], table is trace.samples
        parts.append(part)
    return np.concatenate(parts)


def following(batches: Table) -> tuple[Table, Table]:
    """Each batch but the first of an epoch, beside the one delivered before it: (before, itself)."""
    later = batches["run"][1:] == batches["run"][:-1]
    return batches[:-1][later], batches[1:][later]


def _make(table: Table, parts: Table) -> None:
    """Fill in what the making of each batch says."""
    if not len(parts) or not len(table):
        return
    identity, inverse = np.unique(_identity(parts), return_inverse=True)
    work = np.bincount(inverse, parts["elapsed"]).astype(np.int64)
    # Sorted by batch, then by end: the last of each batch is the one that made it ready.
    by_end = np.lexsort((parts["end"], inverse))
    lasts = by_end[np.append(np.flatnonzero(np.diff(inverse[by_end])), len(by_end) - 1)]
    begun = np.full(len(identity), np.iinfo(np.int64).max)
    np.minimum.at(begun, inverse, parts["start"])
    wanted = _identity(table)
    at = np.minimum(np.searchsorted(identity, wanted), len(identity) - 1)
    made = identity[at] == wanted
    at, last = at[made], lasts[at[made]]
    table["made"] = made
    table["work"][made], table["begun"][made] = work[at], begun[at]
    table["ready"][made], table["maker"][made] = parts["end"][last], parts["stream"][last]
    # A maker may note the end of its work just after the trainer has the batch.
    table["ready"] = np.minimum(table["ready"], table["got"])
    table["delay"][made] = (table["got"] - table["ready"])[made]


def _identity(table: Table) -> npt.NDArray[Any]:
    # Run and batch in one number: a run may be -1, and no epoch has as many batches as 44 bits can count.
    identity: npt.NDArray[Any] = (table["run"].astype(np.int64) + 1 << 44) + table["batch"]
    return identity


def _block(table: Table) -> None:
    """Fill in how long each batch was waited for while a later one was ready."""
    runs = np.unique(table["run"])
    for run in runs:
        at = np.flatnonzero((table["run"] == run) & table["made"])
        if len(at) < 2:
            continue
        earliest = np.minimum.accumulate(table["ready"][at][::-1])[::-1]  # ready from here on, this one included
        first, later = at[:-1], earliest[1:]
        since = np.maximum(table["asked"][first], later)
        table["blocked"][first] = np.clip(table["got"][first] - since, 0, table["wait"][first])
