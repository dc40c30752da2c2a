"""JPEG files of mixed sizes to a ResNet on a GPU, decoded by workers or by the device.

torchvision's ImageFolder with RandomResizedCrop(224), a flip, ToTensor and Normalize; files are in shared memory, and
each is six samples of an epoch, or 18 where the device decodes for a model: an epoch of 38,400 or 115,200 samples, of
which ImageNet's has 1,281,167. ResNet-50 and ResNet-18 train in bfloat16 (autocast, channels last, SGD), batch 128.
"The GPU's own rate" is that of steps on a batch that stays on the device, measured in each run before its epochs, once
the loader is made. Loaders with PIL have two workers less than there are cores; with on_device=True there are two
(four for ResNet-18), and batches arrive as bfloat16 in channels last. "In order" is in_order=True, where a worker
makes a cheap batch alone; the others deliver in completion order. Epochs count whole, with their beginnings and ends:
the first, in which workers start, apart from the second. "First batch" is what `iter()` and the first `next()` of the
first epoch took together. CPU is that of all processes beyond what the same steps take by themselves. `next()` is the
trainer's CPU time in one call, P50. "Alone" trains nothing: what decoders and kernels give, with the time that
decoding a batch took and the time that the device says its kernels took. "Taken from the step" is how much longer a
step takes in the steady part of the second epoch than by itself: an upper bound of the
GPU's time that decoding and kernels take. "At 150 ms" has the same files in a store that answers after 150 ms, and a
cache of encoded samples: its first epoch fills the cache, the second is the one after that. Every sample must come
once per epoch. DALI, where it is installed, decodes, crops and flips on the device, too, with random numbers of
its own, and as many threads as are said (`pixel_peers.py`). Without CUDA a sleep stands for the training,
the twin for the kernels, and nothing said of a GPU holds.

``python -m benchmarks.on_device OUT [SECONDS]`` runs the cases once, in the order of their weight, as many as end in
that time, and writes the report of those that have ended to OUT after each.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import headrace
from benchmarks import costs, pictures, pixel_peers, steps
from benchmarks.arms import Arm
from benchmarks.measure import Figures, Isolated, Meter, Runs, interleaved
from headrace.store import Record
from headrace.store.base import Row
from headrace.testing.scripted import ScriptedStore

if TYPE_CHECKING:
    from benchmarks.report import Report
    from benchmarks.scope import Scope

BATCH, CROP, TIMES, LONG = 128, 224, 6, 3
SIDE = 419
"""Pixels of a picture's longer side in the median: in the mean it has then as many pixels as one of 500 × 375."""
MEANS, DEVIATIONS = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
DELAY = 0.15
LEAST, MOST = 20.0, 140.0
"""Seconds that a case needs, and may take, where the time for all of them is short."""
PEER = "DALI"
OTHERS = ("nvidia.dali", "ffcv", "spdl")


@dataclass(frozen=True)
class Contender:
    """A loader and what it feeds; no model trains nothing."""

    arm: Arm
    model: str | None
    on_device: bool = False
    distant: bool = False
    """The files lie in a store that answers late, with a cache before it."""

    @property
    def is_peer(self) -> bool:
        """Another library's own pipeline."""
        return self.arm.library == PEER

    @property
    def epochs(self) -> int:
        """How many times as long as the others' its epochs are: so long that their beginnings count as they do."""
        on_device = self.on_device or self.is_peer
        return LONG if on_device and self.model is not None and here() != "cpu" else 1

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.is_peer:
            return f"{self.model or 'alone'}: {self.arm.library}, {self.arm.workers} threads"
        where = "on_device" if self.on_device else "PIL"
        workers = "auto" if self.arm.workers is None else self.arm.workers
        order = ", in order" if self.on_device and self.arm.in_order else ""
        return f"{self.model or 'alone'}: {self.arm.library}, {where}, {workers} workers{order}" + (
            ", at 150 ms" if self.distant else ""
        )


def contenders() -> list[Contender]:
    """What matters most first, but for torch's: a virtual machine's memory is found page by page when it is first used,
    and whoever comes first has to wait for it.
    """
    many = max(costs.cores() - 2, 2)
    two, four, ordered = Arm("headrace", False, 2), Arm("headrace", False, 4), Arm("headrace", True, 2)
    is_there = here() != "cpu" and pixel_peers.is_there("nvidia.dali")
    return [
        Contender(Arm("torch", True, many), "resnet50"),
        Contender(two, "resnet50", on_device=True),
        Contender(four, "resnet18", on_device=True),
        Contender(two, "resnet50", on_device=True, distant=True),
        *([Contender(Arm(PEER, False, 2), "resnet50"), Contender(Arm(PEER, False, 4), "resnet18")] if is_there else []),
        Contender(ordered, "resnet50", on_device=True),
        Contender(four, None, on_device=True),
        Contender(Arm("headrace", False, many), "resnet50"),
        Contender(Arm("headrace", False, many), "resnet18"),
        *([Contender(Arm(PEER, False, many), model) for model in ("resnet50", "resnet18")] if is_there else []),
    ]


def here() -> str:
    """Where tensors are."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def absent() -> str:
    """Which of the others are not installed."""
    return ", ".join(name for name in OTHERS if not pixel_peers.is_there(name)) or "none"


@contextlib.contextmanager
def files(batches: int, say: Callable[[str], None]) -> Iterator[tuple[Path, int, int]]:
    """A folder of files for so many batches, how many samples that are, and a file's bytes in the mean."""
    count = batches * BATCH // TIMES
    with tempfile.TemporaryDirectory(prefix="headrace-on-device-", dir="/dev/shm") as name:
        say(f"writing {count} files")
        size = pictures.write(Path(name), count, costs.cores(), side=SIDE)
        yield Path(name), count * TIMES // BATCH * BATCH, size // count


def run(report: Report, scope: Scope) -> None:
    """Each in a process of its own."""
    if here() == "cpu":
        report.notes.append("no CUDA here: the step sleeps")
    report.notes.append(f"not installed: {absent()}")
    batches = (6 if scope.quick else 12) if here() == "cpu" else 60 if scope.quick else 300
    with files(batches, scope.say) as (folder, count, size):
        results = interleaved(
            {each.name: partial(measure, each, folder, count, here()) for each in contenders()},
            repeats=1 if scope.quick else 2,
            say=scope.say,
            method="spawn",
        )
    add(report, f"{count} samples of {size / 1e3:.0f} KB, batches of {BATCH}", results)


def main(out: Path, seconds: float) -> int:
    """See above; the exit code is the number of cases without figures."""
    from benchmarks.report import Report

    ends, results = time.monotonic() + seconds, dict[str, Runs]()
    out.mkdir(parents=True, exist_ok=True)
    with files(300 if here() == "cuda" else 6, partial(print, flush=True)) as (folder, count, size):
        for each in contenders():
            runs, left = Runs(), ends - time.monotonic()
            if left > LEAST:
                one = Isolated(partial(measure, each, folder, count, here()), method="spawn", limit=min(MOST, left))
                try:
                    runs.figures.append(one.result())
                except RuntimeError as error:
                    runs.failures.append(str(error))
                finally:
                    one.end()
            else:
                runs.failures.append("no time left")
            results[each.name] = runs
            print(each.name, runs, flush=True)
            report = Report("on_device", __doc__ or "", notes=[f"not installed: {absent()}"])
            add(report, f"{count} samples of {size / 1e3:.0f} KB, batches of {BATCH}", results)
            (out / "on_device.json").write_text(json.dumps(report.data(), indent=1) + "\n")
            (out / "on_device.md").write_text(report.markdown())
    return sum(not runs.figures for runs in results.values())


class Distant(ScriptedStore):
    """Files, by their paths, after a delay."""

    def __init__(self, paths: list[str]) -> None:
        records = [Record(f"{number} {path}", b"", number, {}) for number, path in enumerate(paths)]
        super().__init__(records, delay=DELAY)

    async def answer(self, key: str) -> Row:
        """See ``ScriptedStore``."""
        found = await super().answer(key)
        return Row(found.key, Path(key.partition(" ")[2]).read_bytes(), found.label)  # noqa: ASYNC240  (it is in memory)


def dataset_of(folder: Path, count: int, *, distant: bool) -> Any:
    """Targets are indices."""
    from torchvision import datasets, transforms

    pipeline = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEANS, DEVIATIONS),
        ]
    )
    found = datasets.ImageFolder(str(folder), pipeline)
    paths = [path for path, _ in found.samples]
    repeated = (paths * -(-count // len(paths)))[:count]
    if distant:
        return headrace.StoreDataset(Distant(repeated), transform=pipeline)
    found.samples = [(path, index) for index, path in enumerate(repeated)]
    return found


def measure(one: Contender, folder: Path, count: int, device: str) -> Figures:
    """Two epochs; the second is the fourth where a cache is filled in the first."""
    if not one.distant:
        count *= one.epochs
    dataset = dataset_of(folder, count, distant=one.distant)
    step: Any = Nothing(device)
    if one.model is not None:
        step = steps.Sleep(0.02) if device == "cpu" else steps.Classify(one.model, BATCH, CROP)
    if not one.on_device and not one.is_peer:
        dataset[0]  # what is imported on first use is not counted as the first epoch's, and workers inherit it
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "persistent_workers": True}
    options["multiprocessing_context"] = "fork"  # the default on Linux, but not in a process that was spawned
    if device != "cpu":
        options |= {"pin_memory": True} if one.arm.library == "torch" else {"device": device}
    if one.on_device:
        half = headrace.OnDevice(dtype=torch.bfloat16, memory_format=torch.channels_last)
        options |= {"device": device, "on_device": half}
    if one.distant:
        options["cache"] = headrace.Cache(f"shm://on-device-{os.getpid()}", size=str(2 * count * 200_000))
    figures: dict[str, Any] = {}
    with opened(one, dataset, options) as loader:
        own = figures["own"] = BATCH / step.alone(BATCH)
        own_cpu = getattr(step, "cpu", 0.0) / BATCH
        before = headrace.DeviceUse()
        for name in ("first", *(["filled"] * 2 if one.distant else []), "later"):
            with Meter() as meter:
                waits, spent, steady = epoch(loader, step, device, count)
            figures[name] = count / meter.wall
            figures[f"{name} steady"] = steady
            figures[f"{name} start"] = waits[0]
            figures[f"{name} cpu"] = 1e3 * (meter.cpu / count - own_cpu)
            if one.on_device:
                use = loader.stats().device
                batches = use.batches - before.batches
                figures |= {
                    "decode": 1e3 * (use.decode_seconds - before.decode_seconds) / batches,
                    "pixels": 1e3 * (use.pixels_seconds - before.pixels_seconds) / batches,
                    "bytes": use.peak_bytes,
                    "by workers": use.by_workers,
                    "one by one": use.one_by_one,
                }
                before = use
    return figures | {
        "share": 100 * figures["first"] / own,
        "later share": 100 * figures["later"] / own,
        "steady share": 100 * figures["later steady"] / own,
        "taken": 100 * (own / figures["later steady"] - 1),
        "next": 1e3 * statistics.median(spent),
        "next mean": 1e3 * statistics.mean(spent),
        "next wall": 1e3 * statistics.median(waits),
        "others": meter.others,
    }


@contextlib.contextmanager
def opened(one: Contender, dataset: Any, options: dict[str, Any]) -> Iterator[Any]:
    """The loader of a contender."""
    if not one.is_peer:
        with one.arm.open(dataset, **options) as loader:
            yield loader
        return
    assert one.arm.workers is not None
    peer = pixel_peers.dali(dataset.samples, BATCH, CROP, one.arm.workers, MEANS, DEVIATIONS)
    try:
        yield peer
    finally:
        peer.close()


def epoch(loader: Any, step: Any, device: str, count: int) -> tuple[list[float], list[float], float]:
    """One epoch: wall and CPU seconds of each `next()`, and samples per second once a fifth of them is done.

    The device has finished at that point and at its end.
    """
    began, after = 0.0, count // BATCH // 5
    came: list[Any] = []
    waits, spent = [], []
    asked, used = time.perf_counter(), time.thread_time()
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        inputs, indices = (part.to(device, non_blocking=True) for part in batch)
        waits.append(time.perf_counter() - asked)
        spent.append(time.thread_time() - used)
        came.append(indices.clone())
        step(inputs)
        if len(came) == after:
            step.wait()
            began = time.perf_counter()
        asked, used = time.perf_counter(), time.thread_time()
    step.wait()
    steady = BATCH * (len(came) - after) / (time.perf_counter() - began)
    if sorted(torch.cat(came).tolist()) != list(range(count)):
        raise RuntimeError("an epoch did not deliver every sample once")
    return waits, spent, steady


class Nothing:
    """No training: the loader alone."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, inputs: torch.Tensor) -> None:
        """Nothing."""

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def alone(self, batch: int) -> float:
        return float("nan")


def add(report: Report, title: str, results: dict[str, Runs]) -> None:
    """The table and its checks."""
    from benchmarks.report import Check, Table

    columns = [
        ("GPU's own, images/s", "own"),
        ("first epoch", "first"),
        ("second", "later"),
        ("first batch, s", "first start"),
        ("first, of the GPU's own %", "share"),
        ("second", "later share"),
        ("second, after a fifth", "steady share"),
        ("CPU ms / image beyond the step's", "later cpu"),
        ("next() CPU ms P50", "next"),
        ("mean", "next mean"),
        ("wall", "next wall"),
        ("device: decode ms / batch", "decode"),
        ("pixels", "pixels"),
        ("taken from the step %", "taken"),
    ]
    for name, runs in results.items():
        if "on_device" in name and "alone" not in name:
            bound = 96.0 if "resnet50" in name else 85.0
            which = "later share" if "at 150 ms" in name else "share"  # its first epoch fills the cache
            report.checks.append(Check(f"{name}, of the GPU's own", runs.median(which), bound, False, "%"))
            report.checks.append(Check(f"{name}, CPU per image", runs.median("later cpu"), 0.2, True, "ms"))
            report.checks.append(Check(f"{name}, next()", runs.median("next"), 0.5, True, "ms"))
    report.add(title, Table.of(title, "loader", columns, results), results)


if __name__ == "__main__":
    from benchmarks.on_device import main  # so that what is sent to other processes is found there

    sys.exit(main(Path(sys.argv[1]), float((sys.argv[2:] or ["inf"])[0])))
