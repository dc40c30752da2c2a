"""What a cache in shared memory costs beside the work itself: CPU time to keep a sample, and to have it from there.

One process, batches of 64, samples that exist already, so that making one costs nothing. An epoch without a cache, the
first one with it, in which all are kept, and a later one, in which all are found; the least of a few of each, since the
machine has other things to do. What is beyond the epoch without is what keeping, or having, costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import headrace
from benchmarks import caches
from benchmarks.measure import check_time
from benchmarks.report import Check, Report, Table

SIZES = {"12 KB": (12_288, 60.0, 20.0), "150 KB": (150_528, 120.0, 50.0), "768 KB": (786_432, 400.0, 130.0)}
"""Bytes, and the microseconds that keeping and having may take."""
BATCH = 64


class Ready(torch.utils.data.Dataset[Any]):
    """One tensor for all."""

    def __init__(self, samples: int, size: int) -> None:
        self._samples, self._made = samples, torch.zeros(size, dtype=torch.uint8)

    def cache_fingerprint(self) -> tuple[int, int]:
        return self._samples, len(self._made)

    def __len__(self) -> int:
        return self._samples

    def fetch(self, index: int) -> int:
        return index

    def decode(self, encoded: int) -> torch.Tensor:
        return self._made

    def augment(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.augment(self.decode(self.fetch(index)))


def run(*, quick: bool, say: Callable[[str], None]) -> Report:
    """All sizes."""
    report = Report("keeping", __doc__ or "", quick=quick)
    table = Table("µs of CPU time a sample, beside an epoch without a cache", ["sample", "keeping", "having", "epoch"])
    for name, (size, keeping, having) in SIZES.items():
        say(name)
        samples = min(512 if quick else 4096, (1 << 28 if quick else 1 << 30) // size)
        found = [measured(samples, size) for _ in range(2 if quick else 5)]
        kept, had, plain = (min(column) for column in zip(*found, strict=True))
        table.add(name, kept, had, plain)
        report.raw[name] = {"keeping": kept, "having": had, "without": plain, "rounds": found}
        report.checks.append(Check(f"{name}, keeping", kept, keeping, at_most=True, unit="µs"))
        report.checks.append(Check(f"{name}, having", had, having, at_most=True, unit="µs"))
    report.tables.append(table)
    return report


def measured(samples: int, size: int) -> tuple[float, float, float]:
    """Microseconds a sample: to keep it, to have it, and of the epoch without."""
    check_time()
    dataset = Ready(samples, size)
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0, "shuffle": True, "in_order": False}
    options["collate_fn"] = len
    with headrace.DataLoader(dataset, **options) as loader:
        plain = min(epoch(loader) for _ in range(3))
    with (
        caches.cache(2 * samples * size + (16 << 20), split=(0, 100, 0)) as cache,
        headrace.DataLoader(dataset, cache=cache, **options) as loader,
    ):
        first = epoch(loader)
        later = min(epoch(loader) for _ in range(3))
        use = loader.stats().cache
    if (use.misses, use.decoded) != (samples, 3 * samples):
        raise RuntimeError(f"{use.misses} misses and {use.decoded} hits, where all should have been kept")
    scale = 1e6 / samples
    return (first - plain) * scale, (later - plain) * scale, plain * scale


def epoch(loader: Any) -> float:
    """Seconds of CPU time."""
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began
