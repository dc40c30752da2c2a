"""The runs behind ``headrace demo``: the same epoch of training with one loader after another."""

from __future__ import annotations

import gc
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.progress import Progress
from torch.utils.data import DataLoader

from headrace.cli.pictures import CLASSES, SIDE, Pictures


@dataclass(frozen=True)
class Lap:
    """One epoch with one loader; seconds."""

    name: str
    seconds: float
    """From the loader's construction until it is closed again."""
    wait: float
    """Spent in next()."""
    cpu: float
    """User and system time of this process and its workers."""
    complete: bool
    """Whether every sample came exactly once."""


@dataclass(frozen=True)
class Outcome:
    """All laps, and the time below which none could have ended."""

    samples: int
    workers: int
    ideal: float
    ideal_reason: str
    laps: list[Lap] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """As plain values, with the share of the ideal."""
        laps = [
            {
                **asdict(lap),
                "ideal_share": self.ideal / lap.seconds,
                "speedup": self.laps[0].seconds / lap.seconds,
            }
            for lap in self.laps
        ]
        return {**asdict(self), "laps": laps}


class Contest:
    """The same samples, workers and batches for every loader; each starts from a new model."""

    def __init__(self, dataset: Pictures, workers: int, batch_size: int) -> None:
        self.dataset = dataset
        self.workers = workers
        self.batch_size = batch_size

    def run(self, bar: Progress) -> Outcome:
        """Measure what the work costs, then one lap per loader."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            ideal, reason = self._ideal(bar)
            laps = [self._lap(name, build, bar) for name, build in self._loaders().items()]
        finally:
            torch.set_num_threads(threads)
        return Outcome(len(self.dataset), self.workers, ideal, reason, laps)

    def _loaders(self) -> dict[str, Callable[[], Any]]:
        def ours(in_order: bool) -> Any:
            import headrace

            return headrace.DataLoader(
                self.dataset,
                self.batch_size,
                shuffle=True,
                num_workers=self.workers,
                in_order=in_order,
            )

        return {
            "torch DataLoader": lambda: DataLoader(
                self.dataset, self.batch_size, shuffle=True, num_workers=self.workers
            ),
            "headrace, sampler order": lambda: ours(True),
            "headrace, completion order": lambda: ours(False),
        }

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

    def _lap(self, name: str, build: Callable[[], Any], bar: Progress) -> Lap:
        batches = -(-len(self.dataset) // self.batch_size)
        task = bar.add_task(name, total=batches)
        torch.manual_seed(0)
        step = training_step()
        gc.collect()
        cpu, began = cpu_time(), time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = build()
            wait, seen = self._epoch(loader, step, lambda: bar.update(task, advance=1, refresh=True))
        close = getattr(loader, "close", None)
        if close is not None:
            close()
        del loader
        seconds = time.perf_counter() - began
        complete = sorted(seen) == list(range(len(self.dataset)))
        return Lap(name, seconds, wait, cpu_time() - cpu, complete)

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
