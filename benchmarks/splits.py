"""What the cache models predict for fixed splits, against what is measured, and how good the chosen split is.

One job on JPEG files (about 256 x 192, resized to 120, cropped to 112) in a storage of a stated rate, which the dataset
waits for; a cache in shared memory that is smaller than the files together, for datasets of several sizes. Six splits
between encoded and decoded samples; augmented ones are of no use to a single job, which may not be given one twice.
Measured are the third to fifth epoch, with nothing but loading. There are four workers to a core, so that some wait for
the storage while others compute. Three models: that by which a loader's cache plans for itself (`plan.splitting`), from
what such a loader measured of itself in a run of its own, with all of the cache for decoded samples, as it begins; the
busiest resource (`plan.bottleneck`) and the mean of rates (Seneca's Eq. 9), which `headrace plan` prints, from two
runs: without a cache and with a fast storage (decoding and augmenting), and with all samples decoded in a large cache
(augmenting). Sizes of entries are what they take of the cache. Cores that other processes kept busy during a run are
measured, and taken off those that the models have for it; runs are repeated, and medians taken. Correlations are over
all sizes and splits. "Chosen" is the split that a model says is best, and what it then reached over the best of the
six. "Found" says what the cache had of the samples, and what the planner's model says of that.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import caches, calibration, costs, pictures
from benchmarks.arms import Arm
from benchmarks.calibration import Rates, Sizes
from benchmarks.clock import rounds, shared
from benchmarks.makespan import BATCH, CROP, RESIZE, SIDE
from benchmarks.measure import Figures, isolated
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from benchmarks.stored import Pictures, Storage
from headrace.plan import bottleneck, partition, splitting
from headrace.plan.parameters import Parameters
from headrace.plan.partition import Split
from headrace.plan.splitting import Measured

SPLITS = tuple(Split(encoded, 100 - encoded, 0) for encoded in (100, 80, 60, 40, 20, 0))
PURE = tuple(Split(encoded, 100 - encoded, 0) for encoded in range(101))
"""All splits without augmented samples."""
PLANNER, RESOURCES, MEAN = "planner", "bottleneck", "Eq. 9"
CASES = ("completion order", "sampler order")
SPARE = 3
"""Times the memory that entries may take: plenty is left for rounding, so that what fits is exact."""
ROOM = 0.8
"""Of the smallest dataset's files, what the cache has room for."""
EPOCHS, REPEATS = 5, 2
ALIKE = 0.95


def run(report: Report, scope: Scope) -> None:
    """One table for each order."""
    counts = [size * max(costs.cores() // 2, 1) for size in ((400, 800) if scope.quick else (500, 800, 1200))]
    with tempfile.TemporaryDirectory(prefix="headrace-splits-") as place:
        folder = Path(place)
        scope.say(f"writing {max(counts)} files")
        size = pictures.write(folder, max(counts), costs.cores(), side=SIDE) / max(counts)
        for name in scope.chosen(CASES):
            Comparison(report, name, folder, counts, costs.cores() * 200 * size, scope.say).run()


class Comparison:
    """All splits of all datasets, in one order; ``storage``: bytes a second."""

    def __init__(
        self, report: Report, name: str, folder: Path, counts: list[int], storage: float, say: Callable[[str], None]
    ) -> None:
        self.report, self.name, self.folder, self.counts, self.storage, self.say = (
            report,
            name,
            folder,
            counts,
            storage,
            say,
        )
        self.arm = Arm("headrace", name == "sampler order", 4 * costs.cores())
        self.probe = Pictures(folder, counts[0], Storage(counts[0]), resize=RESIZE, crop=CROP)
        with caches.cache(int(SPARE * ROOM * counts[0] * Sizes.of(self.probe).encoded)) as cache:
            self.sizes, self.size = Sizes.of(self.probe, cache), cache.bytes
        self.room = int(ROOM * counts[0] * self.sizes.encoded)
        self.others: list[float] = []
        self.points: dict[str, list[float]] = {label: [] for label in ("measured", PLANNER, RESOURCES, MEAN)}

    def run(self) -> None:
        """Measure the parameters, then every split of every dataset."""
        self.say(f"{self.name}: parameters")
        rates = self.rates()
        table = Table(
            f"{self.name}, {self.arm.workers} workers: images/s; storage {self.storage / 1e6:.1f} MB/s, "
            f"cache {self.room / 1e6:.1f} MB, entries of {self.sizes.encoded / 1e3:.0f} and "
            f"{self.sizes.decoded / 1e3:.0f} KB; decoding {rates.decoding:.0f}/s, augmenting {rates.augmenting:.0f}/s",
            ["files, split", *self.points, "of the best measured", "found encoded / decoded %", "predicted", "limit"],
        )
        for count in shared(self.counts):
            self.dataset(table, count, rates)
        for label, values in self.points.items():
            if label == "measured":
                continue
            pairs = list(zip(values, self.points["measured"], strict=True))
            alike = statistics.correlation(values, self.points["measured"])
            error = statistics.median(abs(said / real - 1) for said, real in pairs)
            self.report.notes.append(f"{self.name}: {label}: Pearson {alike:.3f}, off by {error:.0%} in the median")
            if label != MEAN:  # which is here for comparison
                self.report.checks.append(
                    Check(f"{self.name}, {label} and measurement, Pearson", alike, ALIKE, at_most=False)
                )
        self.report.tables.append(table)
        self.report.notes.append(f"{self.name}: other processes kept up to {max(self.others):.1f} cores busy")

    def rates(self) -> Rates:
        """Of a fast storage, without a cache and with one that has everything decoded."""
        load = partial(calibration.load, self.arm, self.probe, batch=BATCH)
        decoding = isolated(partial(load, None, epochs=EPOCHS))
        with caches.cache(int(2 * len(self.probe) * self.sizes.decoded), split=(0, 100, 0)) as cache:
            return Rates.of(decoding, isolated(partial(load, cache, epochs=4 * EPOCHS)), costs.cores())

    def dataset(self, table: Table, count: int, rates: Rates) -> None:
        """All splits of one."""
        dataset = Pictures(self.folder, count, Storage(count, self.storage), resize=RESIZE, crop=CROP)
        typed = partial(calibration.parameters, self.sizes, samples=count, room=self.room, storage=self.storage)
        self.say(f"{self.name}: {count} files, what a loader measures")
        with caches.cache(self.size, split=(0, 100, 0)) as cache:
            known = partial(calibration.self_measured, self.arm, dataset, cache, BATCH, self.room)
            measured: Measured = isolated(known)["given"]
        chosen = {label: max(PURE, key=model) for label, model in predictions(measured, typed(rates)).items()}
        chosen[PLANNER] = splitting.best(measured).split
        found = self.measure(dataset, list(dict.fromkeys([*SPLITS, *chosen.values()])))
        best = max(found[split]["rate"] for split in SPLITS)
        for split in SPLITS:
            real, share = found[split]["rate"], calibration.left(found[split], costs.cores())
            models = predictions(with_share(measured, share), typed(rates.with_share(share)))
            said = [model(split) for model in models.values()]
            limit = splitting.predict(with_share(measured, share), split).limit
            table.add(f"{count}, {split}", real, *said, real / best, *shares(found[split], measured, split), limit)
            for values, value in zip(self.points.values(), [real, *said], strict=True):
                values.append(value)
        for label, split in chosen.items():
            real = found[split]["rate"]
            cells = shares(found[split], measured, split)
            table.add(f"{count}, chosen by {label}: {split}", real, "", "", "", real / best, *cells, "")
            if label != MEAN:
                what = f"{self.name}, {count} files, split chosen by {label}, of the best"
                self.report.checks.append(Check(what, real / best, ALIKE, at_most=False))
        self.report.raw[f"{self.name}, {count} files"] = {
            "measured": {str(split): figures for split, figures in found.items()},
            "by a loader of itself": str(measured),
            "parameters": typed(rates).data(),
        }
        self.report.raw[self.name] = self.points

    def measure(self, dataset: Any, splits: list[Split]) -> dict[Split, Figures]:
        """Each split from an empty cache, there and back again: neighbours in time share the machine's mood."""
        runs: dict[Split, list[Figures]] = {split: [] for split in splits}
        for repeat in rounds(REPEATS, self.say):
            for split in splits if repeat % 2 == 0 else splits[::-1]:
                self.say(f"{self.name}: {len(dataset)} files, {split}, {repeat + 1}/{REPEATS}")
                with caches.cache(self.size, split=tuple(split)) as cache:
                    load = partial(calibration.load, self.arm, dataset, cache, BATCH, epochs=EPOCHS, room=self.room)
                    runs[split].append(isolated(load))
        self.others += [figures["others"] for each in runs.values() for figures in each]
        return {split: medians(each) for split, each in runs.items()}


def medians(runs: list[Figures]) -> Figures:
    """Of repeated runs; of what was found, the last."""
    found = {key: statistics.median(run[key] for run in runs) for key in ("rate", "others", "cores")}
    return {**found, "found": runs[-1]["found"], "rates": [run["rate"] for run in runs]}


def with_share(measured: Measured, share: float) -> Measured:
    """With a part of the cores, in place of what was left while it was measured."""
    assert measured.cpu is not None
    return replace(measured, cpu=replace(measured.cpu, cores=costs.cores() * share))


def predictions(measured: Measured, typed: Parameters) -> dict[str, Callable[[Split], float]]:
    """What each model says of a split, in images a second."""
    return {
        PLANNER: lambda split: splitting.predict(measured, split).throughput,
        RESOURCES: lambda split: bottleneck.predict(typed, split).throughput,
        MEAN: lambda split: partition.predict(typed, split).throughput,
    }


def shares(figures: Figures, measured: Measured, split: Split) -> tuple[str, str]:
    """Percent found encoded and decoded, measured and predicted."""
    said = splitting.found(measured, np.array([split], np.float64) / 100)
    return tuple(  # type: ignore[return-value]
        f"{100 * encoded:.0f} / {100 * decoded:.0f}"
        for encoded, decoded in (figures["found"], (float(said.encoded[0]), float(said.decoded[0])))
    )
