"""Samples of known and uneven cost: MinatoLoader's workloads, scaled down, and harder ones.

A cost is slept (an input that waits: disk, network, another process) or burned (a decoder). Costs are
drawn once from a seed and belong to the index, so every loader does the same work in the same order.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.bare import sustain
from benchmarks.volumes import Volumes, depths_for, write

Costs = np.ndarray[Any, np.dtype[np.float64]]
SLEEPING, BURNING = "sleeping", "burning"


@dataclass(frozen=True)
class Workload:
    """Costs in seconds for a number of samples, and how they are loaded."""

    name: str
    draw: Callable[[int, np.random.Generator], Costs]
    batch: int
    batches: tuple[int, int]
    """In a quick run (0: left out) and in a full one: multiples of 12, equal shares for torch's twelve workers."""
    lanes: int = 12
    arrays: bool = False
    """The burning kind works on 3-D arrays in files, whose size makes the cost."""

    def costs(self, *, quick: bool) -> Costs:
        """What each sample costs when slept."""
        return self.draw(self.batch * self.batches[not quick], np.random.default_rng(7))

    @contextmanager
    def dataset(self, kind: str, *, quick: bool) -> Iterator[Costly]:
        """The samples, as long as their files are there."""
        costs = self.costs(quick=quick)
        if kind == SLEEPING:
            yield Sleeping(costs)
        elif self.arrays:
            with tempfile.TemporaryDirectory(prefix="headrace-volumes-") as folder:
                yield Segmentation(costs * burned(), Path(folder))
        else:
            yield Burning(costs * burned())


class Costly(Protocol):
    """Samples that end with their index and each have a cost."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def each(self) -> list[float]:
        """What every sample costs, in seconds."""
        ...


class Priced(Dataset[Any]):
    """Samples ``(tensor, index)`` that each have a cost."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs.tolist()
        self.sample = torch.zeros(3, 32, 32)

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.spend(self.costs[index])
        return self.sample, index

    def spend(self, seconds: float) -> None:
        """Make the caller pay."""
        raise NotImplementedError

    def each(self) -> list[float]:
        """What every sample costs, in seconds."""
        return list(self.costs)


class Sleeping(Priced):
    """The cost is slept."""

    def spend(self, seconds: float) -> None:
        time.sleep(seconds)


class Burning(Priced):
    """The cost is burned: CPU time of the thread, which neither a busy machine nor more workers make cheaper."""

    def spend(self, seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass


class Segmentation(Volumes):
    """Image segmentation: volumes whose size makes the cost, as many files as a small disk holds."""

    FILES = 64

    def __init__(self, costs: Costs, folder: Path) -> None:
        groups = np.array_split(np.argsort(costs, kind="stable"), min(self.FILES, len(costs)))
        files = np.zeros(len(costs), int)
        for number, group in enumerate(groups):
            files[group] = number
        super().__init__(folder, files.tolist())
        write(folder, depths_for([float(costs[group].mean()) for group in groups], folder))

    def each(self) -> list[float]:
        """Measured with all cores busy: what array operations cost is known only by running them."""
        return sustain(self, cores()).each


def detection(count: int, draw: np.random.Generator) -> Costs:
    """Object detection: mean 31 ms, median 28, P75 30, P90 35, from 11 to 176."""
    share = draw.uniform(size=count)
    below = 11 + 17 * (share / 0.5) ** 0.3
    tail = 35 + 141 * (np.maximum(share - 0.9, 0) / 0.1) ** 3.2
    middle = np.interp(share, [0.5, 0.75, 0.9], [28, 30, 35])
    return np.where(share < 0.5, below, np.where(share < 0.9, middle, tail)) / 1e3


def segmentation(count: int, draw: np.random.Generator) -> Costs:
    """Image segmentation: mean 500 ms, median 470, P90 750, at most 2230; a twentieth of it."""
    return np.minimum(470 * np.exp(draw.normal(0, 0.352, count)), 2230) / 1e3 / 20


@dataclass(frozen=True)
class Speech:
    """0.5 s, and `heavy` seconds for a fifth of the samples; a fiftieth of it."""

    heavy: float
    fifth: bool
    """Every fifth is heavy, or one in five at random."""

    def __call__(self, count: int, draw: np.random.Generator) -> Costs:
        chosen = np.arange(count) % 5 == 0 if self.fifth else draw.uniform(size=count) < 0.2
        return np.where(chosen, self.heavy, 0.5) / 50


def pareto(count: int, draw: np.random.Generator) -> Costs:
    """Pareto with exponent 1.3, bounded to 5 ms .. 1 s."""
    low, high, exponent = 0.005, 1.0, 1.3
    share = draw.uniform(size=count) * (1 - (low / high) ** exponent)
    return low * (1 - share) ** (-1 / exponent)


def stragglers(count: int, draw: np.random.Generator) -> Costs:
    """10 ms, and 1 s for 0.3 % of the samples (their number is exact, their places are drawn)."""
    costs = np.full(count, 0.01)
    costs[draw.choice(count, max(1, round(0.003 * count)), replace=False)] = 1.0
    return costs


def single(count: int, _: np.random.Generator) -> Costs:
    """10 ms, and 2 s for one sample, after a quarter of the epoch."""
    costs = np.full(count, 0.01)
    costs[count // 4] = 2.0
    return costs


def constant(count: int, _: np.random.Generator) -> Costs:
    """20 ms each: nothing to gain, and nothing may be lost."""
    return np.full(count, 0.02)


WORKLOADS = (
    Workload("object detection", detection, 48, (24, 60)),
    Workload("image segmentation", segmentation, 3, (240, 720), arrays=True),
    Workload("speech 3 s, random", Speech(3.0, fifth=False), 24, (36, 120)),
    Workload("speech 3 s, every fifth", Speech(3.0, fifth=True), 24, (36, 120)),
    Workload("speech 10 s, random", Speech(10.0, fifth=False), 24, (24, 60)),
    Workload("speech 10 s, every fifth", Speech(10.0, fifth=True), 24, (0, 60)),
    Workload("Pareto", pareto, 24, (48, 144)),
    Workload("0.3 % stragglers", stragglers, 24, (48, 144)),
    Workload("constant", constant, 32, (36, 96)),
    Workload("one 2 s sample", single, 32, (24, 48), lanes=2),
)


def burned() -> float:
    """Burned costs are this share of slept ones: a few cores do the work of twelve lanes, and epochs last a second."""
    return min(max(cores() / 64, 0.2), 1.0)


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0))


def makespan(costs: list[float], lanes: int) -> float:
    """Seconds of a work-conserving schedule that starts samples in their order, the first free lane taking the next."""
    free = [0.0] * lanes
    for cost in costs:
        heapq.heappush(free, heapq.heappop(free) + cost)
    return max(free)
