"""The runs behind ``headrace demo``: the same epochs of training with one loader after another."""

from __future__ import annotations

import collections
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from headrace.cli.demos.demo_pictures import CLASSES
from headrace.running.meter import Neighbours, cpu_time

Step = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Lap:
    """An epoch with one loader; seconds."""

    seconds: float
    wait: float
    """Spent in ``next()``."""
    complete: bool
    """Whether every sample came exactly once."""


@dataclass
class Contestant:
    """A loader and all its epochs."""

    name: str
    laps: list[Lap] = field(default_factory=list)
    cpu: float = 0.0
    """CPU seconds of this process and the loader's, over all epochs."""
    others: float = 0.0
    """Cores that the rest of the machine kept busy meanwhile."""
    hits: float | None = None
    """Share of all samples that were cached; None without a cache."""
    notes: tuple[str, ...] = ()
    """What the loader says of itself."""

    @property
    def seconds(self) -> float:
        return sum(lap.seconds for lap in self.laps)

    @property
    def wait_share(self) -> float:
        """The share of the time spent in ``next()``."""
        return sum(lap.wait for lap in self.laps) / self.seconds

    @property
    def complete(self) -> bool:
        return all(lap.complete for lap in self.laps)

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds, "wait_share": self.wait_share, "complete": self.complete}


class Contest:
    """The same samples, batches and model for every loader. Samples are (picture, label, {"key": ...})."""

    def __init__(self, dataset: Any, batch_size: int, device: str | None) -> None:
        self.dataset, self.batch_size, self.device = dataset, batch_size, device

    def bound(self) -> tuple[float, str]:
        """Seconds below which no epoch without a cache can end, and why: the larger of two lower bounds.

        Measured alone, on as many samples as a tenth of them: all samples' CPU time over the cores, and training.
        """
        count = len(self.dataset)
        chosen = range(0, count, max(1, count // 100))
        began = time.thread_time()
        made = [self.dataset[index] for index in chosen]
        making = (time.thread_time() - began) / len(chosen) * count
        step, batch = self.step(), made[0][0].expand(self.batch_size, -1, -1, -1).contiguous()
        labels = torch.zeros(self.batch_size, dtype=torch.long)
        step(batch, labels)
        began = time.perf_counter()
        for _ in range(5):
            step(batch, labels)
        training = (time.perf_counter() - began) / 5 * count / self.batch_size
        cores = len(os.sched_getaffinity(0))
        on_cpu = 0.0 if self.device else training
        bounds = {f"the work over {cores} cores": (making + on_cpu) / cores, "training alone": training}
        reason = max(bounds, key=lambda name: bounds[name])
        return bounds[reason], reason

    def run(self, name: str, build: Callable[[], Any], epochs: int, advance: Callable[[], None]) -> Contestant:
        """Run so many epochs with a loader that is made and closed here."""
        torch.manual_seed(0)
        step, entry = self.step(), Contestant(name)
        gc.collect()
        neighbours, cpu = Neighbours(), cpu_time()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = build()
            for _ in range(epochs):
                entry.laps.append(self._lap(loader, step, advance))
        if hasattr(loader, "stats"):
            entry.hits, entry.notes = _told(loader.stats())
        if hasattr(loader, "close"):
            loader.close()
        del loader
        gc.collect()
        entry.cpu = cpu_time() - cpu
        entry.others = neighbours.cores()
        return entry

    def _lap(self, loader: Any, step: Step, advance: Callable[[], None]) -> Lap:
        seen: collections.Counter[str] = collections.Counter()
        wait, began = 0.0, time.perf_counter()
        batches: Iterator[Any] = iter(loader)
        while True:
            asked = time.perf_counter()
            try:
                pictures, labels, about = next(batches)
            except StopIteration:
                break
            wait += time.perf_counter() - asked
            step(pictures, labels)
            seen.update(about["key"])
            advance()
        once = seen.keys() == set(self.dataset.keys) and seen.total() == len(self.dataset)
        return Lap(time.perf_counter() - began, wait, once)

    def step(self) -> Step:
        """Forward, backward and update of a new small convolutional network."""
        layers: Sequence[torch.nn.Module] = [
            torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(32, CLASSES),
        ]
        device = torch.device(self.device or "cpu")
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(pictures: torch.Tensor, labels: torch.Tensor) -> None:
            there, right = pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(there.float()), right)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step


def _told(stats: Any) -> tuple[float | None, tuple[str, ...]]:
    """Hits, and what made a difference, in sentences: counted, not guessed."""
    use, notes = stats.cache, []
    found = use.encoded + use.decoded + use.augmented
    total = found + use.misses
    if total:
        notes.append(f"cache: {found} of {total} samples were found in it, so they were neither read nor decoded again")
    if stats.hand_offs:
        notes.append(f"slow samples: {stats.hand_offs} times a worker kept a slow one and gave its place to another")
    elif stats.slow:
        notes.append(f"slow samples: {stats.slow} took long, and other workers filled the batches meanwhile")
    return (found / total if total else None), tuple(notes)
