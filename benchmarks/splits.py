"""What the cache models predict for fixed splits, against what is measured, and how good the chosen split is.

One job on JPEG files (about 256 x 192, resized to 128, cropped to 112) in a storage of a stated rate, which the dataset
waits for; a cache in shared memory that is smaller than the files together, for datasets of several sizes. Six splits
between encoded and decoded samples; augmented ones are of no use to a single job, which may not be given one twice.
Measured are the third and fourth epoch, with nothing but loading. The models' parameters come from two runs: without
a cache and with a fast storage (decoding and augmenting), with all samples decoded in a large cache (augmenting), and
the sizes of entries. Predicted are the mean of rates (Seneca's Eq. 9) and the busiest resource (`plan.bottleneck`);
correlations are over all sizes and splits. "Chosen" is the split that a model says is best, and what it then reached
over the best of the six. There are four workers to a core, so that some wait for the storage while others compute.
"Found" says what the cache had of the samples. In completion order, cached samples are exchanged for missing ones, so
they come first in an epoch; in sampler order they come as drawn, mixed.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import headrace
from benchmarks import caches, costs, pictures
from benchmarks.arms import Arm
from benchmarks.jobs import Job
from benchmarks.makespan import BATCH, CROP, RESIZE, SIDE
from benchmarks.measure import Figures, isolated
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from benchmarks.stored import Pictures, Storage
from headrace.engine.staging.kinds import codec
from headrace.plan import bottleneck, partition
from headrace.plan.parameters import Parameters
from headrace.plan.partition import Prediction, Split

SPLITS = tuple(Split(encoded, 100 - encoded, 0) for encoded in (100, 80, 60, 40, 20, 0))
MODELS: dict[str, Callable[[Parameters, Split], Prediction]] = {
    "Eq. 9": partition.predict,
    "bottleneck": bottleneck.predict,
}
CASES = ("completion order", "sampler order")
SPARE = 3
"""Times the memory that entries may take: plenty is left for rounding, so that what fits is exact."""
PLENTY = 1e12
ROOM = 0.8
"""Of the smallest dataset's files, what the cache has room for."""


def run(
    *, quick: bool, say: Callable[[str], None], only: Collection[str] = (), minutes: float = float("inf")
) -> Report:
    """One table for each order."""
    report = Report("splits", __doc__ or "", quick=quick)
    scope = Scope(quick, only, minutes)
    counts = [size * max(costs.cores() // 2, 1) for size in ((400, 800) if quick else (500, 800, 1200))]
    with tempfile.TemporaryDirectory(prefix="headrace-splits-") as place:
        folder = Path(place)
        say(f"writing {max(counts)} files")
        size = pictures.write(folder, max(counts), costs.cores(), side=SIDE) / max(counts)
        rate = costs.cores() * 200 * size
        for name in scope.chosen(CASES):
            compare(report, name, folder, counts, rate, say)
    scope.close(report)
    return report


def compare(
    report: Report, name: str, folder: Path, counts: list[int], rate: float, say: Callable[[str], None]
) -> None:
    """Measure the parameters, then every split of every dataset."""
    arm = Arm("headrace", name == "sampler order", 4 * costs.cores())
    probe = Pictures(folder, counts[0], Storage(counts[0]), resize=RESIZE, crop=CROP)
    encoded, decoded = entries(probe)
    cache_bytes = ROOM * counts[0] * encoded
    say(f"{name}: parameters")
    bare = isolated(partial(load, arm, probe, None))["rate"]
    with caches.cache(int(2 * SPARE * counts[0] * decoded), split=(0, 100, 0)) as cache:
        cached = isolated(partial(load, arm, probe, cache))["rate"]
    table = Table(
        f"{name}, {arm.workers} workers: images/s; storage {rate / 1e6:.1f} MB/s, cache {cache_bytes / 1e6:.1f} MB, "
        f"entries of {encoded / 1e3:.0f} and {decoded / 1e3:.0f} KB; decoding {bare:.0f}/s, augmenting {cached:.0f}/s",
        ["files, split", "measured", *MODELS, "of the best measured", "found encoded / decoded %", "predicted"],
    )
    points: dict[str, list[float]] = {label: [] for label in ("measured", *MODELS)}
    for count in counts:
        given = Parameters(
            t_gpu=PLENTY,
            b_nic=PLENTY,
            b_pcie=PLENTY,
            b_cache=PLENTY,
            t_da=bare,
            t_a=cached,
            b_storage=rate,
            s_cache=cache_bytes,
            s_data=encoded,
            n_total=count,
            m=decoded / encoded,
        )
        dataset = Pictures(folder, count, Storage(count, rate), resize=RESIZE, crop=CROP)
        chosen = {
            label: max(pure(), key=lambda split: model(given, split).throughput) for label, model in MODELS.items()
        }
        found: dict[Split, Figures] = {}
        for split in dict.fromkeys([*SPLITS, *chosen.values()]):
            say(f"{name}: {count} files, {split}")
            with caches.cache(int(SPARE * cache_bytes), split=tuple(split)) as cache:
                found[split] = isolated(partial(load, arm, dataset, cache))
        best = max(found[split]["rate"] for split in SPLITS)
        for split in SPLITS:
            said = [model(given, split).throughput for model in MODELS.values()]
            real, held = found[split]["rate"], partition.held(given, split)
            shares = f"{100 * held.e / count:.0f} / {100 * held.d / count:.0f}"
            table.add(f"{count}, {split}", real, *said, real / best, found[split]["found"], shares)
            for label, value in zip(points, [real, *said], strict=True):
                points[label].append(value)
        for label, split in chosen.items():
            real = found[split]["rate"]
            table.add(f"{count}, chosen by {label}: {split}", real, "", "", real / best, found[split]["found"], "")
            report.checks.append(
                Check(f"{name}, {count} files, split chosen by {label}, of the best", real / best, 0.95, False)
            )
    for label in MODELS:
        alike = statistics.correlation(points[label], points["measured"])
        report.checks.append(Check(f"{name}, {label} and measurement, Pearson", alike, 0.95, False))
        errors = [abs(said / real - 1) for said, real in zip(points[label], points["measured"], strict=True)]
        report.notes.append(f"{name}: {label} is off by {100 * statistics.median(errors):.0f} % in the median")
    report.tables.append(table)
    report.raw[name] = points


def pure() -> list[Split]:
    """All splits without augmented samples."""
    return [Split(encoded, 100 - encoded, 0) for encoded in range(101)]


def entries(dataset: Pictures) -> tuple[float, float]:
    """Mean bytes of an encoded and of a decoded sample, as the cache keeps them."""
    known = codec()
    sizes = []
    for index in range(0, len(dataset), math.ceil(len(dataset) / 100)):
        fetched = dataset.fetch(index)
        sizes.append([known.encode((None, value)).size for value in (fetched, dataset.decode(fetched))])
    encoded, decoded = zip(*sizes, strict=True)
    return statistics.mean(encoded), statistics.mean(decoded)


def load(arm: Arm, dataset: Any, cache: headrace.Cache | None) -> Figures:
    """Images per second in the third and fourth epoch, and in which forms they were found there."""
    if cache is not None:
        caches.fill(cache, cache.bytes // SPARE)
    figures = Job(arm, dataset, 4, BATCH, cache=cache).run()
    served, uses = 2 * len(dataset), figures["uses"]
    shares = [(uses[3][form] - uses[1][form]) / served for form in ("encoded", "decoded")] if cache else [0.0, 0.0]
    found = " / ".join(f"{100 * share:.0f}" for share in shares)
    return {"rate": served / sum(figures["walls"][2:]), "found": found}
