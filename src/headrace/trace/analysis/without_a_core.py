"""Time for which workers could have run and had no core: to a clock it looks like waiting for a disk. Pure."""

import numpy as np

from headrace.trace import format as F
from headrace.trace.analysis.spread import computed, ratio
from headrace.trace.reader import Trace


def without_a_core(trace: Trace) -> float | None:
    """Share of the samples' time; None where workers did not say how long they queued, or not twice."""
    told = trace.counters[trace.counters["name"] == trace.number(F.QUEUED)]
    queued = spent = 0
    rest = 0.0
    for stream in np.unique(told["stream"]).tolist():
        of = told[told["stream"] == stream]
        begin, end = int(of["time"].min()), int(of["time"].max())
        samples = trace.samples[trace.samples["stream"] == stream]
        between = (samples["start"] >= begin) & (samples["start"] + samples["elapsed"] <= end)
        queued += int(of["value"].max() - of["value"].min())
        spent += int(samples["elapsed"][between].sum())
        rest += (1 - (computed(samples[between]) or 0.0)) * int(samples["elapsed"][between].sum())
    # A worker queues between samples, too: there is no more than what they did not compute.
    return ratio(min(queued, rest), spent) if spent else None
