"""Training jobs side by side: processes of their own that each go through a dataset several times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

import headrace
from benchmarks.arms import Arm
from benchmarks.measure import Figures, Isolated, Meter, machine_cpu, side_by_side


@dataclass(frozen=True)
class Job:
    """What a job does; all of it is loading, but for ``step`` seconds that it sleeps with each batch."""

    arm: Arm
    dataset: Any
    epochs: int
    batch: int = 32
    step: float = 0.0
    cache: headrace.Cache | None = None
    seed: int = 0
    """Jobs that are forked would all shuffle alike."""

    def run(self) -> Figures:
        """Seconds and CPU seconds of each epoch, the start of workers in the first; what its cache counted after each,
        when that was, and the CPU seconds of the whole machine till then.

        Samples end with their index, and each must come once per epoch.
        """
        count = len(self.dataset)
        torch.manual_seed(self.seed)
        options: dict[str, Any] = {"batch_size": self.batch, "shuffle": True, "persistent_workers": True}
        if self.cache is not None:
            options["cache"] = self.cache
        walls, cpus, uses, ends, machine = [], [], [], [], []
        with self.arm.open(self.dataset, **options) as loader:
            for _ in range(self.epochs):
                came: list[int] = []
                with Meter() as meter:
                    for *_, indices in loader:
                        came += indices.tolist()
                        if self.step:
                            time.sleep(self.step)
                if sorted(came) != list(range(count)):
                    raise RuntimeError("an epoch did not deliver every sample once")
                ends.append(time.monotonic())
                walls.append(meter.wall)
                cpus.append(meter.cpu)
                machine.append(machine_cpu())
                uses.append(counted(loader) if self.cache is not None else {})
        return {"walls": walls, "cpus": cpus, "uses": uses, "ends": ends, "machine": machine}


def counted(loader: Any) -> dict[str, int]:
    """What a loader's cache has counted so far."""
    return dict(loader.stats().as_dict()["cache"])


@dataclass(frozen=True)
class Outcome:
    """What became of a queue of jobs."""

    makespan: float
    """Seconds from the start of the first to the end of the last."""
    jobs: list[Figures]
    others: float
    """Cores that the rest of the machine kept busy meanwhile."""


def together(queue: Sequence[Callable[[], Figures]], at_once: int) -> Outcome:
    """Run jobs in order, so many at a time; one that fails ends all."""
    begun = enumerate(map(Isolated, queue))
    with Meter() as meter, closing(side_by_side(begun, at_once)) as ended:
        found = {number: one.result() for number, one in ended}
    return Outcome(meter.wall, [found[number] for number in sorted(found)], meter.others)
