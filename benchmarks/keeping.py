"""What a cache in shared memory costs beside the work itself: CPU time to keep a sample, and to have it from there.

A worker and the training process together, batches of 64. Making a sample takes 0.3 ms of CPU time, which is taken off
where it is found: so that a worker visits the ledger as often with and without a cache, which it does less for samples
that take no time at all.
"Keeping" is a loader's first epoch with an empty cache, in which all are kept, less one without a cache; "having" a
later one, in which all are found; "in vain" a later one with room for a hundredth of them. The least of a few of each,
since the machine has other things to do. "Files alone" is what the kernel takes for it: a file of shared memory written
and named, and one read that no processor has near.

"The first epoch" is what that comes to by the clock where samples take 2 ms of CPU time: samples per second of an epoch
in which all are kept, over those of one without a cache, from the first batch to the last, in batches of 16. The median
of a few pairs of runs, one right after the other; "a later one" is the third epoch with the cache. With as many workers
as cores or more, the cores set the pace, and training needs none of them.

"In a row and apart" is what all that costs in a process by itself, by its CPU time: samples kept one right after the
other, and each after 2 ms of something else, when code and data are in no cache of the processor any more; and the same
for a file written and named. The median of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headrace
from benchmarks import caches
from benchmarks.clock import check_time, rounds, shared, unless_first
from benchmarks.measure import tree_cpu
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from headrace.cache import cache_options
from headrace.cache.backends import entry_word as W
from headrace.cache.backends import shm
from headrace.cache.peers import Unit
from headrace.caching.plans import codec

_COLUMNS = ["keeping", "having", "in vain", "epoch", "files alone, written", "read"]
SIZES = {"12 KB": (12_288, 60.0, 20.0), "150 KB": (150_528, 120.0, 50.0), "768 KB": (786_432, 400.0, 130.0)}
"""Bytes, and the microseconds that keeping and having may take."""
BATCH, WORK = 64, 300
"""Samples of a batch, and microseconds that one takes."""
WORKERS = (4, 14)
APART = -1
"""Stands for a number of workers: there are none, and what is done is done in a row and apart."""
SLOW, SMALL = 2000, 16
"""Microseconds of a sample, and samples of a batch, where a first epoch is held against one without a cache."""


class Ready(torch.utils.data.Dataset[Any]):
    """One tensor for all, after some work."""

    def __init__(self, samples: int, size: int, work: int = WORK) -> None:
        self._samples, self._made, self._work = samples, torch.zeros(size, dtype=torch.uint8), work

    def cache_fingerprint(self) -> tuple[int, int]:
        return self._samples, len(self._made)

    def __len__(self) -> int:
        return self._samples

    def fetch(self, index: int) -> int:
        work(self._work)
        return index

    def decode(self, encoded: int) -> torch.Tensor:
        return self._made

    def augment(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.augment(self.decode(self.fetch(index)))


def work(microseconds: int) -> None:
    """Of CPU time."""
    until = time.process_time_ns() + 1000 * microseconds
    while time.process_time_ns() < until:
        pass


def run(report: Report, scope: Scope) -> None:
    """All sizes; then their first epochs, with few workers and with many."""
    costs = Table("µs of CPU time a sample, beside an epoch without a cache", ["sample", *_COLUMNS])
    rates = Table(
        "Samples/s of a first epoch, and of a later one with a cache",
        ["sample, workers", "without a cache", "with one", "of that", "later"],
    )
    near = Table("µs of CPU time in a row and apart", ["sample", "kept in a row", "apart", "file in a row", "apart"])
    ways = {0: (costs, cost), APART: (near, apart)}
    for name, workers in shared([*itertools.product(SIZES, ways), *itertools.product(SIZES, WORKERS)]):
        table, add = ways.get(workers, (rates, first_epoch))
        if table not in report.tables:  # what is finished is kept, where time runs out
            report.tables.append(table)
        add(report, scope, table, name, workers)


def cost(report: Report, scope: Scope, table: Table, name: str, _workers: int) -> None:
    """Of one size."""
    size, keeping, having = SIZES[name]
    samples = min(1024 if scope.quick else 4096, (1 << 28 if scope.quick else 1 << 30) // size)
    found = []
    for number in rounds(2 if scope.quick else 6, scope.say):
        scope.say(f"{name}, {number}")
        with unless_first(number):
            found.append((*measured(samples, size), *files(samples, size)))
    started, plain, first, later, vain, written, read = [min(column) for column in zip(*found, strict=True)]
    later += WORK
    table.add(name, first - started, later - plain, vain - plain, plain, written, read)
    report.raw[name] = {"columns": ["start", "without", "first", "later", "in vain", *_COLUMNS[-2:]], "rounds": found}
    report.checks.append(Check(f"{name}, keeping", first - started, keeping, at_most=True, unit="µs"))
    report.checks.append(Check(f"{name}, having", later - plain, having, at_most=True, unit="µs"))
    report.checks.append(
        Check(f"{name}, in vain, of a sample of 2 ms", (vain - plain) / 20, 3.0, at_most=True, unit="%")
    )


def apart(report: Report, scope: Scope, table: Table, name: str, _workers: int) -> None:
    """Of one size."""
    size, samples = SIZES[name][0], 64 if scope.quick else 256
    scope.say(f"{name}, in a row and apart")
    taken: dict[tuple[str, int], list[float]] = {}
    with caches.cache(3 * samples * size + (1 << 24), split=(0, 100, 0)) as cache:
        share = cache_options.open_share(cache, ("00", "01", "02"), 2 * samples, Unit("keeping", "apart"))
        there = os.open(shm.path_of(cache.name), os.O_RDONLY)
        taking, value, content = codec(), torch.zeros(size, dtype=torch.uint8), bytearray(size)

        def keep(number: int) -> None:
            share.hold(number, W.DECODED, taking.describe(value))
            share.settle()

        def write(number: int) -> None:
            _write(there, f"written-{number}", content)
            os.unlink(f"written-{number}", dir_fd=there)

        try:
            for turn, pause in enumerate((0, SLOW)):
                for act in (keep, write):
                    check_time()
                    found = taken[act.__name__, pause] = []
                    for number in range(samples):
                        work(pause)
                        began = time.thread_time()
                        act(turn * samples + number)
                        found.append(1e6 * (time.thread_time() - began))
        finally:
            os.close(there)
            share.close()
    table.add(name, *(statistics.median(taken[what, pause]) for what in ("keep", "write") for pause in (0, SLOW)))
    report.raw[f"in a row and apart, {name}"] = {f"{what}, {pause}": each for (what, pause), each in taken.items()}


def first_epoch(report: Report, scope: Scope, table: Table, name: str, workers: int) -> None:
    """Of one size, with so many workers."""
    size, cores = SIZES[name][0], len(os.sched_getaffinity(0))
    samples = min((256 if scope.quick else 1024) * min(workers, cores), (1 << 32) // size)
    found = []
    for number in rounds(1 if scope.quick else 3, scope.say):
        scope.say(f"first epoch, {name}, {workers} workers, {number}")
        with unless_first(number), caches.cache(2 * samples * size + (1 << 20), split=(0, 100, 0)) as cache:
            check_time()
            plain, _ = rates_of(samples, size, workers, None)
            found.append((plain, *rates_of(samples, size, workers, cache)))
    ratio = statistics.median(kept / plain for plain, kept, _ in found)
    plain, kept, later = (statistics.median(each) for each in zip(*found, strict=True))
    table.add(f"{name}, {workers}", plain, kept, ratio, later)
    report.raw[f"first epoch, {name}, {workers} workers"] = found
    report.checks.append(Check(f"{name}, first epoch, {workers} workers", ratio, 0.97, at_most=False))


def rates_of(samples: int, size: int, workers: int, cache: headrace.Cache | None) -> tuple[float, float]:
    """Samples per second of a loader's first epoch, once its workers are there, and of the third, with a cache."""
    options: dict[str, Any] = {"batch_size": SMALL, "num_workers": workers, "shuffle": True, "in_order": False}
    found = []
    with headrace.DataLoader(Ready(samples, size, SLOW), cache=cache, persistent_workers=True, **options) as loader:
        for _ in range(1 if cache is None else 3):
            batches = iter(loader)
            next(batches)
            began = time.perf_counter()
            count = sum(len(batch) for batch in batches)
            found.append(count / (time.perf_counter() - began))
    return found[0], found[-1]


def measured(samples: int, size: int) -> tuple[float, ...]:
    """Microseconds a sample: first and later epochs without, first and later ones with, and later ones in vain."""
    found = []
    for share in (None, 2.0, 0.01):
        check_time()
        with caches.cache(int((share or 1) * samples * size) + (1 << 20), split=(0, 100, 0)) as cache:
            given = None if share is None else cache
            first, later = epochs(Ready(samples, size), given)
        found += [first, later]
    return found[0], found[1], found[2], found[3], found[5]


def epochs(dataset: Ready, cache: headrace.Cache | None) -> tuple[float, float]:
    """Microseconds of CPU time a sample, in the first epoch, and in the least of three later ones."""
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 1, "shuffle": True, "in_order": False}
    found = []
    with headrace.DataLoader(dataset, cache=cache, persistent_workers=True, **options) as loader:
        for _ in range(4):
            began = tree_cpu()
            for _ in loader:
                pass
            found.append(1e6 * (tree_cpu() - began) / len(dataset))
    return found[0], min(found[1:])


def files(samples: int, size: int) -> tuple[float, float]:
    """Microseconds of CPU time for a file of that size, written and named, and read."""
    content = bytearray(size)
    folder = Path(tempfile.mkdtemp(dir=shm.ROOT))
    there = os.open(folder, os.O_RDONLY)
    try:
        written = _each(samples, lambda number: _write(there, str(number), content))
        read = _each(samples, lambda number: _read(there, str(number), content))
    finally:
        os.close(there)
        shutil.rmtree(folder)
    return written, read


def _write(folder: int, name: str, content: bytearray) -> None:
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=folder)
    os.write(file, content)
    os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder, follow_symlinks=True)
    os.close(file)


def _read(folder: int, name: str, target: bytearray) -> None:
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    os.preadv(file, [target], 0)
    os.close(file)


def _each(count: int, act: Callable[[int], None]) -> float:
    """The least of a few parts, in microseconds."""
    ends = range(0, count + 1, max(1, count // 8))
    found = []
    for first, last in itertools.pairwise(ends):
        began = time.process_time()
        for number in range(first, last):
            act(number)
        found.append(1e6 * (time.process_time() - began) / (last - first))
    return min(found)
