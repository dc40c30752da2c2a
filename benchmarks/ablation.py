"""What each part of the scheduling is worth: the workloads of `scheduling`, slept, loader only.

headrace in completion order with one part changed at a time: nobody stands in for slow samples,
displacement bounded to 1, 8 or 64 batches (the default) or not at all, sampler order with and without
stand-ins, and lanes that follow demand instead of a fixed number.
"""

from __future__ import annotations

import headrace
from benchmarks import costs, scheduling
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.report import Report
from benchmarks.scope import Scope

CASES = scheduling.CASES
QUICK = ("speech 10 s, random", "Pareto", "0.3 % stragglers", "one 2 s sample", "constant")


def run(report: Report, scope: Scope) -> None:
    """One table per workload."""
    names = QUICK if scope.quick and not scope.only else CASES
    planned = {one: sum(one.costs(quick=scope.quick)) / one.lanes for one in scheduling.chosen(scope, names)}
    for workload in shared(planned):
        with workload.dataset(costs.SLEEPING, quick=scope.quick) as dataset:
            each = dataset.each()
            case = scheduling.Case(workload, dataset, sum(each), workload.lanes, consumed=False)
            results = scheduling.contest(case, arms(workload.lanes), costs.SLEEPING, scope)
        title = scheduling.name(case, costs.SLEEPING, each)
        scheduling.add(report, title, case, results, against="the default")


def arms(lanes: int) -> dict[str, scheduling.Contender]:
    """The default first: the others are compared with it."""

    def arm(in_order: bool = False, workers: int | None = lanes, **changed: int | bool | None) -> Arm:
        return Arm("headrace", in_order, workers, scheduling=headrace.Scheduling(**changed))  # type: ignore[arg-type]

    return {
        "default": arm(),
        "no hand-off": arm(hand_off=False),
        "max_displacement=1": arm(max_displacement=1),
        "max_displacement=8": arm(max_displacement=8),
        "max_displacement=None": arm(max_displacement=None),
        "no hand-off, max_displacement=None": arm(hand_off=False, max_displacement=None),
        "sampler order": arm(True),
        "sampler order, no hand-off": arm(True, hand_off=False),
        "automatic lanes": arm(workers=None),
        "automatic lanes, no hand-off": arm(workers=None, hand_off=False),
    }
