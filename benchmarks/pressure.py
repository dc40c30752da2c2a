"""Image segmentation from a data set three times the memory allowed, which forces every epoch back to disk.

Volumes in .npy files (see `volumes`), batch 3, shuffled, loader only. Each run moves into a memory cgroup of its
own before it opens the loader, so workers, shared memory and the page cache of what they read count, while
torch's own code and what the run inherited do not. The files are dropped from the page cache first; a warm-up
epoch precedes the measured ones. The same runs without a limit, files in the page cache, are beside them.

"MB/s" is the size of the samples delivered, as in MinatoLoader's evaluation; "read MB/s" what came from storage
(/proc/*/io of the process tree), "read / data" that over the data set's size, per epoch: 1 means nothing was kept.
"Held" is the largest anonymous plus shared memory seen, which no reclaiming can drop; "peak" includes page cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import volumes
from benchmarks.arms import Arm
from benchmarks.clock import shared
from benchmarks.costs import cores
from benchmarks.groups import NoGroupError, limited
from benchmarks.measure import Figures, Meter, Runs, disturbance, interleaved, tree_read
from benchmarks.report import Check, Figure, Report, Table
from benchmarks.scope import LeftOut, Scope

BATCH = 3
TIMES = 3
"""Data over memory."""
MIB = 1 << 20


def run(report: Report, scope: Scope) -> None:
    """Without a limit, then with it; nothing where no limit can be set."""
    try:
        with limited("headrace-try", MIB):
            pass
    except NoGroupError as error:
        raise LeftOut(str(error)) from None
    limit = (256 if scope.quick else 512) * MIB
    with tempfile.TemporaryDirectory(prefix="headrace-pressure-") as name:
        folder = Path(name)
        depths = sizes(TIMES * limit, np.random.default_rng(11))
        written = volumes.write(folder, depths)
        dataset = volumes.Volumes(folder, range(len(depths)))
        scope.say(f"{len(depths)} volumes, {written / 1e6:.0f} MB")
        results = {}
        for allowed in shared((None, limit)):
            arms = {
                arm.name: partial(measure, arm, dataset, written, allowed, 1 if scope.quick else 2)
                for arm in contenders()
            }
            title = (
                f"{'no limit' if allowed is None else f'{allowed // MIB} MiB allowed'}, {written / MIB:.0f} MiB of data"
            )
            scope.say(title)
            results[allowed] = interleaved(arms, repeats=1 if scope.quick else 3, say=scope.say, limit=300)
            add(report, title, results[allowed])
    report.checks = checks(results[limit])
    kept = {name: runs.median("rate") / results[None][name].median("rate") for name, runs in results[limit].items()}
    report.notes += [f"{name}: {100 * share:.0f} % of its throughput without limit" for name, share in kept.items()]


def contenders() -> list[Arm]:
    """torch with as many workers as cores and twice as many, headrace as many as cores and automatic."""
    count = cores()
    return [
        *(Arm("torch", order, workers) for workers in (count, 2 * count) for order in (True, False)),
        Arm("headrace", True, count),
        Arm("headrace", False, count),
        Arm("headrace", False, None),
    ]


def sizes(total: int, draw: np.random.Generator) -> list[int]:
    """Depths of volumes that fill `total` bytes, a multiple of the batch: lognormal, around 12 MB each."""
    plane = volumes.PLANE**2 * volumes.VOXEL_BYTES
    depths: list[int] = []
    while sum(depths) * plane < total or len(depths) % BATCH:
        depths.append(max(volumes.CROP, int(11e6 / plane * np.exp(draw.normal(0, 0.4)))))
    return depths


def measure(arm: Arm, dataset: volumes.Volumes, size: int, limit: int | None, epochs: int) -> Figures:
    """A warm-up epoch, then the measured ones."""
    volumes.forget(dataset.folder)
    with limited("headrace", limit) if limit else nullcontext() as group:
        if group:
            group.enter()
        try:
            held = 0
            with arm.open(dataset, batch_size=BATCH, shuffle=True, persistent_workers=True) as loader:
                epoch(loader, len(dataset))
                read = tree_read()
                with Meter() as meter:
                    for _ in range(epochs):
                        held = max(held, epoch(loader, len(dataset), group.held if group else None))
                read = tree_read() - read
            return {
                "rate": size * epochs / meter.wall / 1e6,
                "disk": read / meter.wall / 1e6,
                "reread": read / epochs / size,
                "cpu": meter.cpu / epochs,
                "others": meter.others,
                **({"held": held / 1e6, "peak": group.peak() / 1e6, "kills": group.kills()} if group else {}),
            }
        finally:
            if group:
                group.leave()


def epoch(loader: object, count: int, held: Callable[[], int] | None = None) -> int:
    """Every sample must have come, once; returns the most memory held after a batch."""
    seen = bytearray(count)
    most = 0
    for *_, indices in loader:  # type: ignore[attr-defined]
        for index in indices.tolist():
            seen[index] += 1
        if held:
            most = max(most, held())
    if set(seen) != {1}:
        raise RuntimeError(f"{seen.count(0)} samples did not come")
    return most


def add(report: Report, title: str, results: dict[str, Runs]) -> None:
    """One table."""
    base = results[next(iter(results))].median("rate")
    columns: list[tuple[str, Figure]] = [
        ("MB/s", "rate"),
        ("lowest – highest", lambda runs: runs.spread("rate")),
        ("against torch", lambda runs: runs.median("rate") / base),
        ("read MB/s", "disk"),
        ("read / data", "reread"),
        ("held MB", "held"),
        ("peak MB", "peak"),
        ("CPU s / epoch", "cpu"),
        ("killed", lambda runs: max((run.get("kills", 0) for run in runs.figures), default=0)),
    ]
    report.add(title, Table.of(title, "loader", columns, results), results)
    report.notes.append(f"{title}: {disturbance(results)}")


def checks(results: dict[str, Runs]) -> list[Check]:
    """No run may fail or be killed, and none of ours be slower than torch's best."""
    best = max(runs.median("rate") for name, runs in results.items() if name.startswith("torch"))
    found = []
    for name, runs in results.items():
        if name.startswith("headrace"):
            found.append(
                Check(f"{name} / torch's best, under pressure", runs.median("rate") / best, 1.0, False, "times")
            )
            lost = len(runs.failures) + sum(run.get("kills", 0) for run in runs.figures)
            found.append(Check(f"{name}, runs failed or processes killed", float(lost), 0.0, True))
    return found
