"""Assignment of each sample to the operation its thread was in at that time. Pure."""

import numpy as np
import numpy.typing as npt

from headrace.trace.reader import Table, Trace

Positions = npt.NDArray[np.int64]

BEFORE, OUTSIDE, OTHER_THREADS = "(before the trace)", "(elsewhere)", "(other threads)"
"""Up to the first record, which is mostly imports; threads that record, in no span; threads that record nothing, such
as those of a native library."""
_AROUND = (
    ("spans", ""),
    ("rows", "(write rows)"),
    ("collations", "(collate)"),
    ("copies", "(copy to device)"),
    ("samples", "(rest of sample)"),
    ("batches", "(wait for batch)"),
)
"""Where samples in no operation are looked for, in this order."""


def join(trace: Trace, samples: Table) -> tuple[list[str], Positions]:
    """Names of operations, and the position in that list of each sample."""
    names: dict[str, int] = {BEFORE: 0, OUTSIDE: 1, OTHER_THREADS: 2}
    place = np.full(len(samples), names[OTHER_THREADS], np.int64)
    threads = {(stream.process, stream.thread) for stream in trace.streams}
    for process, thread in sorted(threads):
        mine = np.flatnonzero((samples["process"] == process) & (samples["thread"] == thread))
        numbers = [n for n, stream in enumerate(trace.streams) if (stream.process, stream.thread) == (process, thread)]
        place[mine] = names[OUTSIDE]
        times = samples["time"][mine] - trace.base
        left = np.ones(len(mine), bool)
        for table, label in (("operations", ""), *_AROUND):
            spans: Table = getattr(trace, table)
            which = np.flatnonzero(np.isin(spans["stream"], numbers))
            at = containing(spans["start"][which], spans["elapsed"][which], times)
            hit = left & (at >= 0)
            if not hit.any():
                continue
            if label:
                place[mine[hit]] = names.setdefault(label, len(names))
            else:
                called = spans["name"][which[at[hit]]]
                for number in np.unique(called).tolist():
                    place[mine[hit][called == number]] = names.setdefault(trace.names[number], len(names))
            left &= ~hit
    place[samples["time"] < trace.base] = names[BEFORE]
    return list(names), place


def containing(starts: Positions, lengths: Positions, times: Positions) -> Positions:
    """The position of the innermost span that contains each time, or -1. Spans are disjoint or nested."""
    if not len(starts):
        return np.full(len(times), -1, np.int64)
    order = np.lexsort((-lengths, starts))
    starts, ends = starts[order], (starts + lengths)[order]
    at = np.searchsorted(starts, times, side="right") - 1
    parents = _parents(starts, ends)
    while True:
        over = (at >= 0) & (times >= ends[at])
        if not over.any():
            break
        at[over] = parents[at[over]]
    return np.where(at >= 0, order[at], -1)


def _parents(starts: Positions, ends: Positions) -> Positions:
    """The span that each lies in, or -1."""
    parents = np.full(len(starts), -1, np.int64)
    if not (np.maximum.accumulate(ends)[:-1] > starts[1:]).any():
        return parents  # none lies in another, as is usual
    stack: list[int] = []
    begins, finishes = starts.tolist(), ends.tolist()
    for at, begin in enumerate(begins):
        while stack and finishes[stack[-1]] <= begin:
            stack.pop()
        parents[at] = stack[-1] if stack else -1
        stack.append(at)
    return parents
