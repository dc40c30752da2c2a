"""Advice is followed: at most two rounds bring a loader to within a tenth of the best that a search finds.

The loader here is a model, so that the same figures come on any machine: samples wait and compute, workers share cores,
what samples wait for serves so many at a time, the trainer takes a step. ``benchmarks/advice.py`` does the same with
real loaders.
"""

import re
from dataclasses import dataclass, replace

import pytest

from headrace.trace.analysis.advice import MOST, advise
from headrace.trace.analysis.figures import Figures, Lane
from headrace.trace.analysis.spread import Spread
from headrace.trace.analysis.verdict import judge
from tests.trace.test_advice import short, time

BATCH = 32


@dataclass(frozen=True)
class Workload:
    """What a sample costs, what a step takes (seconds), and what there is."""

    wait: float = 0.0
    compute: float = 0.0
    step: float = 0.05
    """Of the trainer, for a batch."""
    cores: int = 8
    served: int = 1000
    """Samples that what they wait for serves at one time: a disk, a server."""
    copy: float = 0.0
    """Of each batch to the device, in the trainer's time."""
    begins: int = 2
    """Workers that the user has."""
    others: float = 0.0
    """Time without a core that other programs cost, per second of computing, while it is recorded."""


@dataclass(frozen=True)
class Settings:
    """What a user can set."""

    workers: int
    pinned: bool = False


def pace(load: Workload, set_to: Settings) -> float:
    """Batches a second."""
    limits = [1 / (load.step + (0.0 if set_to.pinned else load.copy))]
    workers = max(1, set_to.workers)
    alone = load.wait + load.compute
    limits.append(workers / alone / BATCH)
    if load.compute:
        limits.append(load.cores / load.compute / BATCH)
    if load.wait:
        limits.append(load.served / load.wait / BATCH)
    if not set_to.workers:
        return 1 / (1 / limits[0] + BATCH * alone)
    return min(limits)


def recorded(load: Workload, set_to: Settings) -> Figures:
    """What a trace of it says."""
    rate = pace(load, set_to)
    step = load.step + (0.0 if set_to.pinned else load.copy)
    waits = max(0.0, 1 - rate * step)
    alone = load.wait + load.compute
    # Where workers are what is short, or what they share is, all of them are at work all the time.
    elapsed = alone if waits < 1e-9 else max(alone, set_to.workers / rate / BATCH)
    without = load.others * load.compute
    queued = without + (elapsed - alone if load.compute * rate * BATCH > 0.99 * load.cores else 0.0)
    elapsed += without
    busy = min(1.0, rate * BATCH * elapsed / max(1, set_to.workers))
    copies = {"copies": Spread(count=100, total=9.9 * rate * load.copy, mean=load.copy), "copied_bytes": 10**9}
    lanes = tuple(Lane(number, busy, 100, load.compute / elapsed) for number in range(set_to.workers))
    return short(
        **({} if set_to.pinned or not load.copy else copies),
        facts={"workers": set_to.workers, "torch": True, "pin_memory": set_to.pinned},
        cores=load.cores,
        work=time(BATCH * elapsed),
        step=time(step),
        wait=time(waits / rate),
        wait_share=waits,
        waited_for=1.0 if waits > 0.1 else 0.0,
        lay_ready=0.0 if waits > 0.1 else 1.0,
        lanes=lanes or (Lane(-1, 1.0, 100, load.compute / elapsed),),
        cpu=load.compute / elapsed,
        queued=queued / elapsed,
    )


def followed(load: Workload, set_to: Settings) -> Settings:
    """The settings after doing all that one report says."""
    for advice in advise(recorded(load, set_to)):
        if match := re.fullmatch(r"num_workers=(\d+)", advice.setting):
            set_to = replace(set_to, workers=int(match[1]))
        elif advice.setting == "num_workers=None":
            set_to = replace(set_to, workers=load.cores)  # what our own begins with
        elif "pin_memory=True" in advice.setting:
            set_to = replace(set_to, pinned=True)
    return set_to


WORKLOADS = {
    "30 ms of waiting": Workload(wait=0.03, compute=0.0003, step=0.1),
    "the same on two cores": Workload(wait=0.03, compute=0.0003, step=0.1, cores=2),
    "waiting without a step": Workload(wait=0.03, compute=0.0003, step=1e-6, cores=2),
    "a slow server": Workload(wait=0.2, compute=0.001, step=0.2),
    "a server of eight at a time": Workload(wait=0.05, compute=0.001, step=0.02, served=8),
    "a disk of two at a time": Workload(wait=0.01, compute=0.001, step=0.05, served=2),
    "half waiting, half computing": Workload(wait=0.01, compute=0.01, step=0.05),
    "computing": Workload(compute=0.02, step=0.05),
    "computing on two cores": Workload(compute=0.005, step=0.01, cores=2, begins=1),
    "computing, a little to spare": Workload(compute=0.004, step=0.05),
    "too many workers that compute": Workload(compute=0.02, step=0.05, cores=4, begins=16),
    "tiny samples": Workload(compute=0.00002, step=0.01),
    "everything in one process": Workload(compute=0.01, step=0.1, begins=0),
    "copies to the device": Workload(compute=0.001, step=0.02, copy=0.06),
    "copies, and too few workers": Workload(compute=0.01, step=0.05, copy=0.04),
    "a slow step": Workload(wait=0.005, compute=0.005, step=1.0),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_two_rounds_come_within_a_tenth_of_the_best(name):
    load = WORKLOADS[name]
    best = max(pace(load, Settings(workers, pinned=True)) for workers in range(MOST + 1))
    set_to = Settings(load.begins)
    for _ in range(2):
        set_to = followed(load, set_to)
    assert pace(load, set_to) >= 0.9 * best, (set_to, pace(load, set_to), best)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_good_is_left_alone(name):
    """Advice comes to an end, and does not go in circles."""
    load, seen = WORKLOADS[name], []
    set_to = Settings(load.begins)
    while set_to not in seen:
        seen.append(set_to)
        set_to = followed(load, set_to)
    assert set_to == seen[-1]
    assert len(seen) <= 4


@pytest.mark.parametrize("name", ["half waiting, half computing", "computing", "30 ms of waiting"])
def test_cores_that_others_have_meanwhile_change_nothing(name):
    """What is advised beside other programs is what is advised without them, and the report says so."""
    alone, beside = WORKLOADS[name], replace(WORKLOADS[name], others=3.0)
    assert followed(beside, Settings(2)) == followed(alone, Settings(2))
    figures = recorded(beside, Settings(2))
    [evidence] = [line for line in judge(figures).evidence if "no core was free" in line] or [""]
    assert bool(evidence) == figures.taken == (name != "30 ms of waiting")
    assert any("other programs had some of them" in each.text for each in advise(figures)) == figures.taken
    assert "other programs" not in " ".join(each.text for each in advise(recorded(alone, Settings(2))))


def test_the_report_says_the_number_that_its_own_figures_make():
    load = Workload(wait=0.03, step=0.089, cores=64)
    [advice] = [each for each in advise(recorded(load, Settings(2))) if each.setting.startswith("num_workers")]
    assert advice.setting == "num_workers=12"  # 0.96 s of work every 89 ms and a tenth more
    assert "a batch takes 960 ms of work, the trainer needs one every 89.0 ms, as 12 make them" in advice.text
