"""Hit rates of a cache that one to four jobs share, simulated and with the real ledger, for every policy.

Every job shuffles a dataset of its own epoch after epoch, at its own speed; "drifting" jobs run at 1 : 0.6 : 0.8 : 0.4
(as many of them as there are), the others side by side. The share is how much of the dataset the cache holds. Counted
are the epochs after the second of the fastest job, over whole periods of the speeds (five epochs).
"Hits" are samples served from the cache, "reads" storage reads for each sample served, those for nobody in particular
included. The bound is 1 - (1 - share) / (sum of the speeds over the fastest): the fastest job must find what it needs
beyond the cache in storage once per epoch, and the others may live on that. ODS is Seneca's sampling as published, with
random refill, and with freed places filled by the next misses.

The last tables say what exchange does to the order, by the real rules: of the samples in the last quarter of an epoch,
how many come in the first quarter of the next (chance: 25 %), and how often two samples of a batch meet in a batch
again (chance: 1), for the job where it is worst; with `exchange` as it is by default, bounded, and off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from benchmarks.clock import check_time
from benchmarks.replay import Replay
from benchmarks.report import Check, Report, Table
from benchmarks.requests import drawn
from benchmarks.rules import Need, Opportunistic, Simulated, Static
from benchmarks.scope import Scope
from benchmarks.simulate import Result, simulate
from headrace.cache.backends.entry_word import Array

SHARES = (0.2, 0.4, 0.6, 0.8)
DRIFT = (1.0, 0.6, 0.8, 0.4)
POLICIES: dict[str, Simulated] = {
    "static": Static(),
    "ODS, random refill": Opportunistic(),
    "ODS, next misses": Opportunistic(refills=False),
    "need": Need(),
}


CASES = ("policies", "order")


def run(report: Report, scope: Scope) -> None:
    """All policies on all numbers of jobs, and what the default one does to the order."""
    samples, batch = (400, 8) if scope.quick else (1000, 8)
    for case in scope.chosen(CASES):
        {"policies": policies, "order": orders}[case](report, samples, batch, scope.say)


def policies(report: Report, samples: int, batch: int, say: Callable[[str], None]) -> None:
    """One table for each number of jobs."""
    for jobs in range(1, 5):
        for drifting in (False, True) if jobs > 1 else (False,):
            speeds = DRIFT[:jobs] if drifting else (1.0,) * jobs
            name = f"{jobs} job{'s' * (jobs > 1)}{', drifting' * drifting}"
            say(name)
            warm_up, period = 2, 5 if drifting else 2
            trace = drawn(samples, speeds, batch=batch, epochs=warm_up + period, seed=jobs)
            columns = ["policy", *(f"{share:.0%} cached" for share in SHARES), "reads / sample"]
            table = Table(f"{name}: hits in percent, simulated / real ledger", columns)
            for label, policy in POLICIES.items():
                check_time()
                dreamt = [simulate(trace, policy, share, warm_up=warm_up) for share in SHARES]
                real = [Replay(trace, policy, share).run(warm_up=warm_up) for share in SHARES]
                cells = [f"{100 * a.hit_rate:.1f} / {100 * b.hit_rate:.1f}" for a, b in zip(dreamt, real, strict=True)]
                table.add(label, *cells, " ".join(f"{each.reads_per_sample:.2f}" for each in real))
                report.raw[f"{name}, {label}"] = {
                    "simulated": [each.hit_rate for each in dreamt],
                    "ledger": [each.hit_rate for each in real],
                    "reads": [each.reads_per_sample for each in real],
                }
                if label == "need" and jobs == 3:
                    for share, each in zip(SHARES, real, strict=True):
                        bound = 1 - (1 - share) / sum(speeds)
                        aim = 100 * bound - 0.3
                        report.checks.append(
                            Check(f"{name}, need, {share:.0%} cached, hits %", 100 * each.hit_rate, aim, False)
                        )
            bounds = [f"{100 * (1 - (1 - share) / sum(speeds)):.1f}" for share in SHARES]
            table.add("bound", *bounds, "")
            report.tables.append(table)


def orders(report: Report, samples: int, batch: int, say: Callable[[str], None]) -> None:
    """What is gained and lost by each setting of ``exchange``."""
    for speeds in ((1.0, 1.0), DRIFT[:3]):
        name = f"{len(speeds)} jobs{', drifting' * (len(set(speeds)) > 1)}"
        say(f"{name}: order")
        trace = drawn(samples, speeds, batch=batch, epochs=9, seed=5)
        table = Table(
            f"{name}: hits in percent / last quarter that comes first, percent / meeting again, times chance",
            ["exchange", *(f"{share:.0%} cached" for share in SHARES)],
        )
        for exchange in (math.inf, 3.0, 2.0, 1.5, 0.0):
            cells = []
            for share in SHARES:
                check_time()
                found = Replay(trace, Need(), share, exchange).run(warm_up=2)
                worst = [carried(found, job, samples) for job in range(len(speeds))]
                first, again = (max(column) for column in zip(*worst, strict=True))
                cells.append(f"{100 * found.hit_rate:.1f} / {100 * first:.0f} / {again:.2f}")
            label = {math.inf: "True", 0.0: "False"}.get(exchange, f"{exchange:g}")
            table.add(label, *cells)
            report.raw[f"{name}, exchange={label}"] = cells
        report.tables.append(table)


def carried(found: Result, job: int, samples: int) -> tuple[float, float]:
    """Of a job's whole epochs after the first: what comes first of what came last, and how often batches meet again."""
    epochs: dict[int, list[Array]] = {}
    for who, epoch, batch in found.order:
        if who == job and epoch:
            epochs.setdefault(epoch, []).append(batch)
    whole = [batches for batches in epochs.values() if sum(map(len, batches)) == samples]
    first, met, expected = [], 0, 0.0
    for before, after in itertools.pairwise(whole):
        place = np.empty(samples, np.int64)
        for at, batch in enumerate(after):
            place[batch] = at
        last = np.concatenate(before)[-(samples // 4) :]
        first.append(float(np.mean(place[last] < len(after) / 4)))
        for batch in before:
            counts = np.bincount(place[batch])
            met += int((counts * (counts - 1) // 2).sum())
            expected += len(batch) * (len(batch) - 1) / 2 * (len(after[0]) - 1) / (samples - 1)
    return float(np.mean(first)), met / expected
