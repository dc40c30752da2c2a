"""Hit rates of a cache that one to four jobs share, simulated and with the real ledger, for every policy.

Every job shuffles a dataset of its own epoch after epoch, at its own speed; "drifting" jobs run at 1 : 0.6 : 0.8 : 0.4
(as many of them as there are), the others side by side. The share is how much of the dataset the cache holds. Counted
are the epochs after the second of the fastest job, over whole periods of the speeds (five epochs).
"Hits" are samples served from the cache, "reads" storage reads for each sample served, those for nobody in particular
included. The bound is 1 - (1 - share) / (sum of the speeds over the fastest): the fastest job must find what it needs
beyond the cache in storage once per epoch, and the others may live on that. ODS is Seneca's sampling as published, with
random refill, and with freed places filled by the next misses.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measure import check_time
from benchmarks.replay import Replay
from benchmarks.report import Check, Report, Table
from headrace.cache.policies import Need, Opportunistic, Static
from headrace.cache.simulate import simulate
from headrace.cache.trace import drawn

SHARES = (0.2, 0.4, 0.6, 0.8)
DRIFT = (1.0, 0.6, 0.8, 0.4)
POLICIES = {
    "static": Static(),
    "ODS, random refill": Opportunistic(),
    "ODS, next misses": Opportunistic(refills=False),
    "need": Need(),
}


def run(*, quick: bool, say: Callable[[str], None]) -> Report:
    """All policies on all numbers of jobs."""
    report = Report("hits", __doc__ or "", quick=quick)
    samples, batch = (400, 8) if quick else (1000, 8)
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
    return report
