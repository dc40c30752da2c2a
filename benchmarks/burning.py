"""Full epochs of samples that cost unequal CPU time: what a work-conserving loader gets out of the cores.

The workloads of `scheduling`, at a fraction of their cost and burned instead of slept; image
segmentation works on real 3-D arrays from files. Cost is CPU time of the worker, so the ideal is the
total cost over the cores, and no number of workers can exceed it. torch runs with as many workers as
cores and twice as many, in and out of order; ratios are against whichever came out best, a choice made
after the fact and in torch's favour. torchdata.nodes, SPDL and grain load with processes, as many as
cores (grain: the nearest number below that divides the batches): threads share one interpreter
lock, which pure Python burning never leaves. They are tried with threads too where numpy works.
"""

from __future__ import annotations

from benchmarks import costs, scheduling
from benchmarks.report import Report
from benchmarks.scope import Scope

CASES = scheduling.CASES


def run(report: Report, scope: Scope) -> None:
    """All workloads, burned: loader only, then with a trainer."""
    scheduling.compare(report, costs.BURNING, scope)
