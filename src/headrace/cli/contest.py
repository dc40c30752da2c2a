"""The runs behind ``headrace demo``: the same epoch of training with one loader after another."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch.utils.data import DataLoader

import headrace
from headrace.cli.pictures import CLASSES, SIDE, Pictures


@dataclass(frozen=True)
class Lap:
    """One epoch with one loader; seconds."""

    seconds: float
    """From the loader's construction until it is closed again."""
    wait: float
    """Spent in next()."""
    cpu: float
    """User and system time of this process and its workers."""
    others: float
    """Cores that the rest of the machine kept busy meanwhile; 0 where that is unknown."""
    complete: bool
    """Whether every sample came exactly once."""


@dataclass
class Entry:
    """One loader and all its laps; figures are medians over them."""

    name: str
    build: Callable[[], Any]
    laps: list[Lap] = field(default_factory=list)

    def median(self, figure: str) -> float:
        """The median of one of the laps' figures."""
        return float(statistics.median(getattr(lap, figure) for lap in self.laps))

    @property
    def complete(self) -> bool:
        """Whether every lap delivered every sample exactly once."""
        return all(lap.complete for lap in self.laps)


@dataclass(frozen=True)
class Outcome:
    """All entries, torch first, and the time below which no lap could have ended."""

    samples: int
    workers: int
    ideal: float
    ideal_reason: str
    entries: list[Entry]

    def data(self) -> dict[str, Any]:
        """As plain values, one mapping per loader."""
        base = self.entries[0].median("seconds")
        loaders = [
            {
                "name": entry.name,
                "seconds": entry.median("seconds"),
                "wait": entry.median("wait"),
                "cpu_per_sample": entry.median("cpu") / self.samples,
                "ideal_share": self.ideal / entry.median("seconds"),
                "speedup": base / entry.median("seconds"),
                "complete": entry.complete,
                "laps": [asdict(lap) for lap in entry.laps],
            }
            for entry in self.entries
        ]
        about = {"samples": self.samples, "workers": self.workers}
        return {**about, "ideal": self.ideal, "ideal_reason": self.ideal_reason, "loaders": loaders}


class Contest:
    """The same samples, workers and batches for every loader; each starts from a new model."""

    def __init__(self, dataset: Pictures, workers: int, batch_size: int) -> None:
        self.dataset = dataset
        self.workers = workers
        self.batch_size = batch_size

    def run(self, rounds: int, bar: Progress) -> Outcome:
        """Measure what the work costs, then `rounds` laps per loader: A B C, C B A, and so on."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            ideal, reason = self._ideal(bar)
            entries = self._entries()
            batches = -(-len(self.dataset) // self.batch_size)
            tasks = {entry.name: bar.add_task(entry.name, total=batches * rounds) for entry in entries}
            for turn in range(rounds):
                for entry in entries if turn % 2 == 0 else entries[::-1]:
                    task = tasks[entry.name]
                    entry.laps.append(self._lap(entry.build, partial(bar.update, task, advance=1, refresh=True)))
        finally:
            torch.set_num_threads(threads)
        return Outcome(len(self.dataset), self.workers, ideal, reason, entries)

    def _entries(self) -> list[Entry]:
        common: dict[str, Any] = {"batch_size": self.batch_size, "shuffle": True, "num_workers": self.workers}
        return [
            Entry("torch DataLoader", partial(DataLoader, self.dataset, **common)),
            Entry("headrace, sampler order", partial(headrace.DataLoader, self.dataset, **common, in_order=True)),
            Entry(
                "headrace, completion order",
                partial(headrace.DataLoader, self.dataset, **common, in_order=False),
            ),
        ]

    def _ideal(self, bar: Progress) -> tuple[float, str]:
        """The largest of three lower bounds, each measured with nothing else running.

        All samples' time over the workers, all CPU time over the cores, and training alone.
        """
        task = bar.add_task("measuring samples alone", total=len(self.dataset))
        decode = 0.0
        image = torch.zeros(3, SIDE, SIDE)
        for index in range(len(self.dataset)):
            began = time.thread_time()
            image, _, _ = self.dataset.decode(index)
            decode += time.thread_time() - began
            bar.update(task, advance=1, refresh=index % 16 == 15)
        bar.update(task, refresh=True)
        step = training_step()
        batch = image.expand(self.batch_size, -1, -1, -1).contiguous()
        labels = torch.zeros(self.batch_size, dtype=torch.long)
        step(batch, labels)
        began = time.thread_time()
        for _ in range(5):
            step(batch, labels)
        training = (time.thread_time() - began) / 5 * len(self.dataset) / self.batch_size
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        bounds = {
            f"the samples' time over {self.workers} workers": (decode + sum(self.dataset.stalls)) / self.workers,
            f"the CPU time over {cores} cores": (decode + training) / cores,
            "the training alone": training,
        }
        reason = max(bounds, key=lambda name: bounds[name])
        return bounds[reason], reason

    def _lap(self, build: Callable[[], Any], advance: Callable[[], None]) -> Lap:
        torch.manual_seed(0)
        step = training_step()
        gc.collect()
        busy, cpu, began = machine_time(), cpu_time(), time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = build()
            wait, seen = self._epoch(loader, step, advance)
        if hasattr(loader, "close"):
            loader.close()
        del loader
        seconds = time.perf_counter() - began
        complete = sorted(seen) == list(range(len(self.dataset)))
        cpu = cpu_time() - cpu
        others = max(machine_time() - busy - cpu, 0.0) / seconds
        return Lap(seconds, wait, cpu, others, complete)

    def _epoch(
        self,
        loader: Iterable[list[torch.Tensor]],
        step: Callable[[torch.Tensor, torch.Tensor], None],
        advance: Callable[[], None],
    ) -> tuple[float, list[int]]:
        """Train once over the loader; the time spent in next() and the indices that came."""
        wait = 0.0
        seen: list[int] = []
        asked = time.perf_counter()
        for images, labels, indices in loader:
            wait += time.perf_counter() - asked
            step(images, labels)
            seen += indices.tolist()
            advance()
            asked = time.perf_counter()
        return wait, seen


def training_step() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Forward, backward and update of a new small convolutional network."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def cpu_time() -> float:
    """CPU seconds of this process and the children it has waited for (loaders wait for theirs)."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in usage)


def machine_time() -> float:
    """CPU seconds the whole machine has been busy, stolen time included; 0 without /proc."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
