"""Full epochs of samples that cost unequal CPU time: what a work-conserving loader gets out of the cores.

The workloads of `scheduling`, at a fifth of their cost and burned instead of slept; image
segmentation works on real 3-D arrays. Cost is CPU time of the worker, so the ideal is the total
cost over the cores, and no number of workers can exceed it. torch runs with as many workers as
cores, one and a half times and twice as many, in and out of order; ratios are against whichever
came out best, a choice made after the fact and in torch's favour. Threads (torchdata.nodes, SPDL,
grain) share one interpreter lock, which pure Python burning never leaves: that is their worst case.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import costs, scheduling
from benchmarks.report import Report


def run(*, quick: bool, say: Callable[[str], None]) -> Report:
    """All workloads, burned: loader only, then with a consumer."""
    report = Report("burning", __doc__ or "", quick=quick)
    scheduling.compare(report, costs.BURNING, quick=quick, say=say)
    return report
