"""Whether completion order changes what a model learns, and how far batches stray from shuffled ones.

A small multilayer perceptron on 8 x 8 digits, trained from the same five seeds with strict order, with
completion order, and with completion order when the cost depends on the class: every sample of one
class sleeps thirty times longer than the others, the case in which completion order could sort the
classes. Lanes are many (8), for only samples under way can be overtaken.

"Class balance" is the total variation distance between the classes of a full batch and those of the
dataset, mean over all batches: a shuffle gives the figure of the strict order, 0 is impossible.
"Slow class late" is that class's share of the last tenth of an epoch over its share of the dataset,
"slow class predicted" how often the model names it over how often it is right to. "Lost" is the
accuracy under that of strict order, mean and standard error over pairs with the same seed; where the
error is large, few seeds cannot tell, and "met" says little.
Digits come from scikit-learn where it is installed; otherwise glyphs are drawn, shifted and blurred by noise.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import headrace
from benchmarks.clock import rounds, unless_first
from benchmarks.measure import Figures, Runs, interleaved
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

SEEDS = 5
LANES = 8
BATCH = 32
CLASSES = 10
SLOW_CLASS = 3
SLOW, FAST = 0.015, 0.0005
GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    in_order: bool
    correlated: bool = False
    max_displacement: int | None = 64


SETTINGS = {
    "strict order": Setting(True),
    "completion order": Setting(False),
    "strict order, one class slow": Setting(True, correlated=True),
    "completion, one class slow, max_displacement=1": Setting(False, correlated=True, max_displacement=1),
    "completion, one class slow, max_displacement=8": Setting(False, correlated=True, max_displacement=8),
    "completion, one class slow, max_displacement=64": Setting(False, correlated=True),
    "completion, one class slow, no bound": Setting(False, correlated=True, max_displacement=None),
}


class Digits(Dataset[Any]):
    """Images ``(64 floats, class)``; `cost` seconds are slept, by class."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, cost: list[float]) -> None:
        self.images, self.labels, self.cost = images, labels.tolist(), cost

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = self.labels[index]
        if self.cost[label]:
            time.sleep(self.cost[label])
        return self.images[index], label


def prepared(report: Report) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, said in the report; what runs need is imported once, before they are forked."""
    for module in ("headrace.loader", "torch._dynamo"):  # optimisers load the latter
        importlib.import_module(module)
    images, labels, source = digits()
    report.notes.append(f"data: {source}, {len(labels)} images, a quarter of them for the test")
    return images, labels


def run(report: Report, scope: Scope) -> None:
    """Five seeds of every setting, alternating."""
    images, labels = prepared(report)
    epochs = 10 if scope.quick else 30
    results = {name: Runs() for name in SETTINGS}
    for seed in rounds(SEEDS, scope.say):
        arms = {name: partial(measure, setting, images, labels, seed, epochs) for name, setting in SETTINGS.items()}
        scope.say(f"seed {seed}")
        with unless_first(seed):
            for name, runs in interleaved(arms, repeats=1, say=scope.say, limit=60 + 20 * epochs).items():
                results[name].add(runs)
    title = f"Digits: {epochs} epochs, batch {BATCH}, {LANES} lanes, {seeds(results)} seeds"
    figures = {"class balance": "balance", "slow class late": "late", "slow class predicted": "predicted"}
    compared(report, title, results, {**figures, "s / epoch": "seconds"})


def compared(report: Report, title: str, results: dict[str, Runs], figures: Mapping[str, str]) -> None:
    """The table, against the first; of further ``figures``, by column, the medians. Accuracy is to be within noise: at
    most two standard errors lost, or half a point.
    """
    table = Table(title, ["training", "accuracy %, mean ± sd", "lost, mean ± se", *figures])
    plain = next(iter(results.values()))
    for name, runs in results.items():
        lost, error = pairs(plain, runs)
        table.add(name, spread(runs, "accuracy"), f"{lost:.2f} ± {error:.2f}", *map(runs.median, figures.values()))
        report.notes += [f"{name}: {failure}" for failure in runs.failures]
        if runs is not plain:
            report.checks.append(Check(f"{name}, accuracy lost", lost, max(2 * error, 0.5), True, "points"))
    report.tables.append(table)
    report.raw = {name: vars(runs) for name, runs in results.items()}


def pairs(strict: Runs, runs: Runs) -> tuple[float, float]:
    """Accuracy that `runs` lost against `strict`, seed by seed: mean and standard error."""
    reference = {run["seed"]: run["accuracy"] for run in strict.figures}
    lost = [reference[run["seed"]] - run["accuracy"] for run in runs.figures if run["seed"] in reference]
    if len(lost) < 2:
        return float("nan"), float("nan")
    return statistics.mean(lost), statistics.stdev(lost) / len(lost) ** 0.5


def seeds(results: Mapping[str, Runs]) -> int:
    """How many every arm was trained with: fewer than SEEDS where there was no time."""
    return min(len(runs.figures) for runs in results.values())


def spread(runs: Runs, key: str) -> str:
    """Mean and standard deviation, as text."""
    values = [run[key] for run in runs.figures]
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else "-"


def measure(setting: Setting, images: torch.Tensor, labels: torch.Tensor, seed: int, epochs: int) -> Figures:
    """Train once; accuracy on the test images and what the batches looked like."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.manual_seed(seed)
    held, kept = held_and_kept(len(labels))
    cost = [SLOW if setting.correlated and label == SLOW_CLASS else FAST for label in range(CLASSES)]
    dataset = Digits(images[kept], labels[kept], cost)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    came: list[list[int]] = []
    began = time.perf_counter()
    with headrace.DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=LANES,
        in_order=setting.in_order,
        persistent_workers=True,
        scheduling=headrace.Scheduling(max_displacement=setting.max_displacement),
    ) as loader:
        for _ in range(epochs):
            order: list[int] = []
            for inputs, targets in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                order += targets.tolist()
            if sorted(order) != sorted(dataset.labels):
                raise RuntimeError("an epoch did not deliver every sample once")
            came.append(order)
    seconds = (time.perf_counter() - began) / epochs
    with torch.no_grad():
        said, truth = model(images[held]).argmax(1), labels[held]
    return {
        "seed": seed,
        "accuracy": 100 * (said == truth).double().mean().item(),
        "predicted": ((said == SLOW_CLASS).sum() / (truth == SLOW_CLASS).sum()).item(),
        **composition(came, dataset.labels),
        "seconds": seconds,
    }


def held_and_kept(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images for the test, and those for training: the same for all seeds."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return shuffled[: count // 4], shuffled[count // 4 :]


def composition(came: list[list[int]], labels: list[int]) -> Figures:
    """Mean total variation distance of full batches, and the slow class's share of the end of an epoch."""
    whole = np.bincount(labels, minlength=CLASSES) / len(labels)
    distances, late = [], []
    for order in came:
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = np.bincount(order[start : start + BATCH], minlength=CLASSES) / BATCH
            distances.append(float(np.abs(batch - whole).sum() / 2))
        end = order[-len(order) // 10 :]
        late.append(end.count(SLOW_CLASS) / len(end) / whole[SLOW_CLASS])
    return {"balance": statistics.mean(distances), "late": float(statistics.mean(late))}


def digits() -> tuple[torch.Tensor, torch.Tensor, str]:
    """Images with values from 0 to 1 as rows of 64, their classes, and where they come from."""
    if importlib.util.find_spec("sklearn"):
        from sklearn.datasets import load_digits

        found = load_digits()
        images = torch.tensor(found.data / 16, dtype=torch.float32)
        return images, torch.tensor(found.target), "scikit-learn's digits"
    draw = np.random.default_rng(0)
    labels = np.arange(1797) % CLASSES
    drawn = np.zeros((len(labels), 8, 8), np.float32)
    for image, label in zip(drawn, labels, strict=True):
        glyph = np.array([[float(bit) for bit in row] for row in GLYPHS[label].split()])
        top, left = draw.integers(0, 2), draw.integers(0, 4)
        image[top : top + 7, left : left + 5] = glyph * draw.uniform(0.4, 1.0)
    drawn = np.clip(drawn + draw.normal(0, 0.2, drawn.shape), 0, 1).astype(np.float32)
    return torch.from_numpy(drawn.reshape(-1, 64)), torch.from_numpy(labels), "synthetic glyphs (no scikit-learn here)"
