"""Full epochs of samples that cost unequal time, slept: what is lost by waiting for the slow ones.

Every loader gets the same samples in the same order, from index 0 on, and must deliver each exactly
once. Two epochs with persistent workers precede the three measured ones, so that no start-up is
counted; runs of all loaders alternate, each in a process of its own, and tables show medians. The
epochs follow each other as they do in training, and headrace begins the next one while the last
samples of the one before are made: what a measured epoch was spared, it did for the one after.
Where cores are many, several runs are under way together, each using a small part of one core.
torchdata.nodes, SPDL and grain load with threads, as many as torch has workers, and a quarter more.

"Share of ideal" is the time that the total cost takes on as many lanes as there are workers, never
waiting, over the time the epoch took. Slept costs add up: processes that stand in for slow samples (a
quarter more) and automatic lanes work beside the others, so headrace can exceed it. Like is
compared with like by torch with that many workers too, and by headrace without stand-ins. A
work-conserving schedule that starts the samples in their order does not reach it either, for the last
samples end one by one: the title says how far it gets. With a trainer, each batch is followed by a
step (slept) that would use 90 % of the ideal rate, and the ideal is the time of these steps. "Longest
/ median gap" compares the times between two batches of an epoch; bursts make the median small, so the
longest gap is shown as well. "Others' cores" is what the rest of the machine kept busy meanwhile: rows
in which it differs much cannot be compared by their seconds.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import headrace
from benchmarks import costs, peers
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.costs import SLEEPING, Costly, Workload, cores
from benchmarks.measure import Figures, Meter, Runs, descendants, disturbance, interleaved
from benchmarks.report import Check, Figure, Report, Table
from benchmarks.scope import Scope

EPOCHS = 3
TRAINER = 0.9
"""Share of the ideal rate that the trainer takes."""
DEFAULT, OURS, ORDERED, AUTOMATIC = "torch", "headrace, completion", "headrace, sampler order", "headrace, automatic"
ALONE = "headrace, no hand-off"
CASES = tuple(workload.name for workload in costs.WORKLOADS)
CONSUMED = (
    "object detection",
    "image segmentation",
    "speech 3 s, random",
    "speech 10 s, random",
    "0.3 % stragglers",
    "one 2 s sample",
)
QUICK_CONSUMED = ("speech 3 s, random", "0.3 % stragglers", "one 2 s sample")


class Contender(Protocol):
    """A loader that can be opened over a dataset."""

    def open(self, dataset: Any, **options: Any) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Case:
    """One workload as it is run: how many lanes its ideal has, and the trainer's step in seconds."""

    workload: Workload
    dataset: Costly
    total: float
    """Seconds of work in an epoch."""
    lanes: int
    consumed: bool

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return -(-len(self.dataset) // self.workload.batch)

    @property
    def step(self) -> float:
        """What the trainer does with a batch, in seconds."""
        return self.total / self.lanes / self.batches / TRAINER if self.consumed else 0.0

    @property
    def ideal(self) -> float:
        """Seconds an epoch takes if nobody ever waits."""
        return max(self.total / self.lanes, self.step * self.batches)


def run(report: Report, scope: Scope) -> None:
    """All workloads, slept: loader only, then with a trainer."""
    compare(report, SLEEPING, scope)


def compare(report: Report, kind: str, scope: Scope) -> None:
    """Every contender on every workload of a kind."""
    if peers.missing():
        report.notes.append(f"not installed, so not measured: {', '.join(peers.missing())}")
    if at_once(kind) > 1:
        report.notes.append(f"{at_once(kind)} runs at a time: slept costs leave the cores to the others")
    planned = {
        (workload, consumed): sum(workload.costs(quick=scope.quick)) / workload.lanes * (1 if consumed else 2)
        for workload in chosen(scope, CASES)
        for consumed in ((False, True) if workload.name in consumed_names(scope) else (False,))
    }
    scope.say(f"about {estimate(planned, kind, scope):.0f} minutes, or less if so told")
    for workload, consumed in shared(planned):
        with workload.dataset(kind, quick=scope.quick) as dataset:
            each = dataset.each()
            lanes = workload.lanes if kind == SLEEPING else min(workload.lanes, cores())
            case = Case(workload, dataset, sum(each), lanes, consumed)
            arms = contenders(kind, workload, quick=scope.quick, consumed=consumed)
            results = contest(case, arms, kind, scope)
        add(report, name(case, kind, each), case, results)
        report.checks += checks(f"{workload.name}{', trainer' if consumed else ''}", kind, results)
        if workload.lanes == 2 and kind == SLEEPING:
            report.checks += gap_checks(workload.name, results, consumed=consumed)
    scope.close(report)


def chosen(scope: Scope, cases: Collection[str]) -> list[Workload]:
    """The workloads of a run, out of those named."""
    names = scope.chosen(cases)
    return [one for one in costs.WORKLOADS if one.name in names and one.batches[not scope.quick]]


def consumed_names(scope: Scope) -> tuple[str, ...]:
    """The workloads that are run with a trainer too."""
    return QUICK_CONSUMED if scope.quick else CONSUMED


def estimate(planned: Collection[tuple[Workload, bool]], kind: str, scope: Scope) -> float:
    """Minutes that all repeats take where nothing is disturbed: five epochs a run, a fifth lost, a second to start."""
    seconds = 0.0
    for workload, consumed in planned:
        arms = contenders(kind, workload, quick=scope.quick, consumed=consumed)
        work = sum(workload.costs(quick=scope.quick)) * (1.0 if kind == SLEEPING else costs.burned())
        lanes = workload.lanes if kind == SLEEPING else min(workload.lanes, cores())
        seconds += len(arms) * ((2 + EPOCHS) * 1.2 * work / lanes + 1)
    return seconds * repeats(quick=scope.quick) / at_once(kind) / 60


def contenders(kind: str, workload: Workload, *, quick: bool, consumed: bool) -> dict[str, Contender]:
    """Who takes part; the count of workers is swept where the cost is burned, so that torch is at its best."""
    counts = [workload.lanes] if kind == SLEEPING else [cores(), cores() * 2]
    found: dict[str, Contender] = {}
    for count in counts:
        tail = "" if count == counts[0] else f", {count} workers"
        found[f"{DEFAULT}{tail}"] = Arm("torch", workers=count)
        found[f"{DEFAULT}, in_order=False{tail}"] = Arm("torch", in_order=False, workers=count)
    found[OURS] = Arm("headrace", in_order=False, workers=counts[0])
    found[ORDERED] = Arm("headrace", in_order=True, workers=counts[0])
    if kind == SLEEPING:
        more = workload.lanes + headrace.Scheduling().spares_for(workload.lanes)
        found[f"{DEFAULT}, {more} workers"] = Arm("torch", workers=more)
        found[f"{DEFAULT}, in_order=False, {more} workers"] = Arm("torch", in_order=False, workers=more)
        found[ALONE] = Arm("headrace", False, workload.lanes, scheduling=headrace.Scheduling(hand_off=False))
        counts.append(more)
    if not consumed:
        found[AUTOMATIC] = Arm("headrace", in_order=False, workers=None)
        for library in peers.installed():
            for count in counts[:1] if quick or kind != SLEEPING else counts:
                found |= peer(kind, library, count, workload, quick=quick)
    return found


def peer(kind: str, library: str, count: int, workload: Workload, *, quick: bool) -> dict[str, Contender]:
    """Threads for what sleeps, processes for what burns; both where numpy leaves the interpreter lock now and then."""
    found: dict[str, Contender] = {}
    if kind == SLEEPING or workload.arrays:
        found[f"{library}, {count} threads"] = peers.Peer(library, count)
    if kind != SLEEPING:
        if library == "grain":  # its processes share the batches of an epoch equally
            batches = workload.batches[not quick]
            count = max(number for number in range(1, count + 1) if batches % number == 0)
        found[f"{library}, {count} processes"] = peers.Peer(library, count, peers.PROCESSES)
    return found


def contest(case: Case, arms: Mapping[str, Contender], kind: str, scope: Scope) -> dict[str, Runs]:
    """All arms, alternating."""
    scope.say(f"{case.workload.name}{', trainer' if case.consumed else ''}: ideal {case.ideal:.2f} s")
    return interleaved(
        {name: partial(measure, arm, case) for name, arm in arms.items()},
        repeats=repeats(quick=scope.quick),
        say=scope.say,
        limit=60 + 40 * case.ideal,
        at_once=at_once(kind),
    )


def repeats(*, quick: bool) -> int:
    """Of every arm, at most."""
    return 1 if quick else 3


def at_once(kind: str) -> int:
    """Runs that may be under way together: those that sleep take a small part of a core."""
    return max(cores() // 2, 1) if kind == SLEEPING else 1


def measure(arm: Contender, case: Case) -> Figures:
    """Warm-up epochs, then the measured ones, back to back."""
    options = {"batch_size": case.workload.batch, "persistent_workers": True}
    with arm.open(case.dataset, **options) as loader:
        cold = epoch(loader, case)
        epoch(loader, case)
        before = loader.stats() if isinstance(loader, headrace.DataLoader) else None
        with Meter() as meter:
            gaps = [gap for _ in range(EPOCHS) for gap in epoch(loader, case)]
        after = loader.stats() if isinstance(loader, headrace.DataLoader) else None
        processes = len(descendants())
    seconds = meter.wall / EPOCHS
    figures = {
        "seconds": seconds,
        "share": 100 * case.ideal / seconds,
        "gap": 1e3 * max(gaps),
        "uneven": max(gaps) / median(gaps),
        "cold_gap": 1e3 * max(cold),
        "cold_uneven": max(cold) / median(cold),
        "cpu": meter.cpu / EPOCHS,
        "others": meter.others,
        "processes": processes,
    }
    if before is not None and after is not None:
        figures["hand_offs"] = (after.hand_offs - before.hand_offs) / EPOCHS
        figures["lanes"] = after.lanes
    return figures


def epoch(loader: Any, case: Case) -> list[float]:
    """The times between its batches; every sample must have come, once."""
    seen = bytearray(len(case.dataset))
    times = []
    for *_, indices in loader:
        times.append(time.perf_counter())
        for index in indices.tolist():
            seen[index] += 1
        if case.step:
            time.sleep(case.step)
    if set(seen) != {1}:
        raise RuntimeError(
            f"{seen.count(0)} samples did not come, {len(seen) - seen.count(0) - seen.count(1)} repeated"
        )
    return [later - earlier for earlier, later in pairwise(times)]


def name(case: Case, kind: str, each: Sequence[float]) -> str:
    """What a table is called."""
    greedy = sum(each) / case.lanes / costs.makespan(list(each), case.lanes)
    return (
        f"{case.workload.name}, {kind}, {'trainer at 90 %' if case.consumed else 'loader only'}: "
        f"{len(each):,} samples, batch {case.workload.batch}, {case.lanes} lanes, ideal {case.ideal:.2f} s, "
        f"first-come schedule {100 * greedy:.0f} % of the loader's ideal"
    )


def add(report: Report, title: str, case: Case, results: Mapping[str, Runs], against: str = "torch") -> None:
    """One table, its raw figures and its notes. ``against``: what the first is called."""
    base = results[next(iter(results))].median("seconds")
    columns: list[tuple[str, Figure]] = [
        ("s / epoch", "seconds"),
        ("lowest – highest", lambda runs: runs.spread("seconds")),
        ("share of ideal %", "share"),
        (f"against {against}", lambda runs: base / runs.median("seconds")),
        ("longest gap ms", "gap"),
        ("longest / median gap", "uneven"),
        ("CPU s", "cpu"),
        ("others' cores", "others"),
        ("hand-offs", "hand_offs"),
        ("lanes", "lanes"),
        ("processes", "processes"),
    ]
    report.add(title, Table.of(title, "loader", columns, results), results)
    short = f"{case.workload.name}{', trainer' if case.consumed else ''}"
    report.notes.append(f"{short}: {disturbance(results)}")


def checks(short: str, kind: str, results: Mapping[str, Runs]) -> list[Check]:
    """The targets on one workload."""
    seconds = {arm: runs.median("seconds") for arm, runs in results.items()}
    best = min(value for arm, value in seconds.items() if arm.startswith(DEFAULT) and not arm.startswith("torchdata"))
    ours = min((arm for arm in seconds if arm.startswith(OURS)), key=seconds.__getitem__)
    ordered = min((arm for arm in seconds if arm.startswith(ORDERED)), key=seconds.__getitem__)
    found = []
    if kind == SLEEPING:
        found += [
            Check(f"{short}, {arm}, share of ideal", results[arm].median("share"), 95.0, False, "%")
            for arm in (ours, ALONE)
        ]
    if not short.startswith(("constant", "one 2 s")):
        found.append(Check(f"{short}, {ours} / torch's default", seconds[DEFAULT] / seconds[ours], 1.2, False, "times"))
    return found + [
        Check(f"{short}, {arm} / torch's best", best / seconds[arm], 1.0, False, "times")
        for arm in (ours, ordered, AUTOMATIC)
        if arm in seconds
    ]


def gap_checks(short: str, results: Mapping[str, Runs], *, consumed: bool) -> list[Check]:
    """The slow sample must not be felt, neither in the first epoch nor later."""
    what = f"{short}{', trainer' if consumed else ''}, {OURS}, longest / median gap"
    return [
        Check(what, results[OURS].median("uneven"), 1.5, True, "times"),
        Check(f"{what}, first epoch", results[OURS].median("cold_uneven"), 1.5, True, "times"),
    ]
