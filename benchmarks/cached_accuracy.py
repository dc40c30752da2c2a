"""Whether a cache changes what a model learns.

A small multilayer perceptron on 8 x 8 digits, shifted and blurred by noise at random, trained from the same five seeds
without a cache, with one that has room for all decoded samples, with one that has room for half of them (so that
samples are exchanged all the time), and by two jobs at once that share one with augmented samples in half of it, each
given some that the other made. Every job must see every sample once per epoch; all shuffle, in completion order.
"Class balance" is the total variation distance between the classes of a full batch and those of the dataset, mean over
all batches: a shuffle gives the figure of the first row. "Lost" is the accuracy under that of training without a
cache, mean and standard error over pairs with the same seed; where the error is large, few seeds cannot tell.
Digits come from scikit-learn where it is installed; otherwise glyphs are drawn.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import headrace
from benchmarks import caches
from benchmarks.accuracy import BATCH, CLASSES, SEEDS, compared, composition, held_and_kept, prepared, seeds
from benchmarks.clock import rounds, unless_first
from benchmarks.jobs import together
from benchmarks.measure import Figures, RunError, Runs
from benchmarks.report import Report
from benchmarks.scope import Scope

SCALE = 4
ENTRY = 4 * (10 * SCALE) ** 2
"""Bytes of a decoded sample."""


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    room: float = 0.0
    """For this share of the decoded samples; 0: no cache."""
    split: tuple[int, int, int] = (0, 100, 0)
    jobs: int = 1


SETTINGS = {
    "no cache": Setting(),
    "decoded, room for all": Setting(1.5),
    "decoded, room for half": Setting(0.5),
    "two jobs, decoded and augmented": Setting(1.0, (0, 50, 50), 2),
}


class Digits(Dataset[Any]):
    """Images ``(64 floats, class, index)`` in stages; shifted by up to a pixel, with noise."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def cache_fingerprint(self) -> Any:
        """Of the images."""
        return [len(self.labels), float(self.images.double().sum())]

    def fetch(self, index: int) -> tuple[bytes, int]:
        """Bytes, 0 to 255."""
        return (self.images[index] * 255).round().byte().numpy().tobytes(), index

    def decode(self, encoded: tuple[bytes, int]) -> tuple[torch.Tensor, int]:
        """Floats with an empty border of one pixel, enlarged: the smallest cache would have room for all of them."""
        content, index = encoded
        image = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(8, 8) / 255
        large = nn.functional.pad(image, (1, 1, 1, 1)).repeat_interleave(SCALE, 0).repeat_interleave(SCALE, 1)
        return large, index

    def augment(self, decoded: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int, int]:
        """Shifted, with noise."""
        image, index = decoded
        top, left = (int(torch.randint(3, ())) for _ in range(2))
        part = image[::SCALE, ::SCALE][top : top + 8, left : left + 8].reshape(64)
        return part + 0.05 * torch.randn(64), self.labels[index], index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.augment(self.decode(self.fetch(index)))


def run(report: Report, scope: Scope) -> None:
    """Five seeds of every setting, alternating."""
    images, labels = prepared(report)
    epochs = 10 if scope.quick else 30
    results = {name: Runs() for name in SETTINGS}
    for seed in rounds(SEEDS, scope.say):
        with unless_first(seed):
            for name, setting in SETTINGS.items():
                scope.say(f"seed {seed}: {name}")
                try:
                    results[name].figures.append(dict(trained(setting, images, labels, seed, epochs)))
                except RunError as failure:
                    results[name].failures.append(str(failure))
    title = f"Digits, augmented: {epochs} epochs, batch {BATCH}, {seeds(results)} seeds"
    compared(report, title, results, {"class balance": "balance", "hits %": "hits", "of them augmented %": "augmented"})


def trained(setting: Setting, images: torch.Tensor, labels: torch.Tensor, seed: int, epochs: int) -> Figures:
    """All jobs of a setting, the mean of what they reached."""
    held, kept = held_and_kept(len(labels))
    dataset = Digits(images[kept], labels[kept])
    with ExitStack() as stack:
        cache = None
        if setting.room:
            cache = stack.enter_context(caches.cache(int(setting.room * len(dataset) * ENTRY), split=setting.split))
        each = [
            partial(train, dataset, images[held], labels[held], seed + 100 * job, epochs, cache)
            for job in range(setting.jobs)
        ]
        found = together(each, setting.jobs).jobs
    return {"seed": seed} | {key: statistics.mean(job[key] for job in found) for key in found[0]}


def train(
    dataset: Digits,
    images: torch.Tensor,
    labels: torch.Tensor,
    seed: int,
    epochs: int,
    cache: headrace.Cache | None,
) -> Figures:
    """One job: accuracy on the test images, what the batches looked like, and where samples came from."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    came = []
    with headrace.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=2, in_order=False, persistent_workers=True, cache=cache
    ) as loader:
        for _ in range(epochs):
            classes: list[int] = []
            seen: list[int] = []
            for inputs, targets, indices in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                classes += targets.tolist()
                seen += indices.tolist()
            if sorted(seen) != list(range(len(dataset))):
                raise RuntimeError("an epoch did not deliver every sample once")
            came.append(classes)
        use = loader.stats().cache
    with torch.no_grad():
        said = model(images).argmax(1)
    hits = use.decoded + use.augmented
    return {
        "accuracy": 100 * (said == labels).double().mean().item(),
        "balance": composition(came, dataset.labels)["balance"],
        "hits": 100 * hits / (hits + use.misses) if cache else float("nan"),
        "augmented": 100 * use.augmented / max(hits, 1) if cache else float("nan"),
    }
