"""A page of memory on which a loader keeps its figures, for whoever looks at this host's loaders.

It is an anonymous memory file of the loader's process, found through the process's open files: looking costs the loader
nothing, needs no permission beyond reading the process, and leaves nothing behind when the process ends.
"""

import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from headrace.engine.memory.limits import explained
from headrace.engine.trainer.counters import LoaderCounters
from headrace.sched.hand import Delivered

NAME = "headrace-loader"
MAGIC = 0x48454144_00000001
_PAGE = struct.Struct("<QIIIIII?7xQQQQQQQQQQQQ64s")
_CACHE = struct.Struct("<QQQQQQQBBB")
_ELSEWHERE = struct.Struct("<QQIIH")  # and the nodes, in JSON of so many bytes as the last number says
_READ = 4096
_NODES = _READ - _PAGE.size - _CACHE.size - _ELSEWHERE.size
"""Bytes for the nodes; where they are more, the list ends with those that fit."""


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Figures of a loader's cache: samples by what it had of them, and what is held for all jobs."""

    encoded: int
    decoded: int
    augmented: int
    misses: int
    exchanged: int
    evicted: int
    """Samples evicted by all jobs, as the bytes are of all."""
    bytes: int
    split: tuple[int, int, int]
    """Percentages for encoded, decoded and augmented samples."""

    @property
    def served(self) -> int:
        """Samples in all."""
        return self.encoded + self.decoded + self.augmented + self.misses


@dataclass(frozen=True, slots=True)
class ElsewhereFigures:
    """Figures of a loader with ``remote=``."""

    samples: int
    """Made on other hosts."""
    given_back: int
    """Asked for there and made here."""
    lanes: int
    """Processes that make samples there, now."""
    nodes: tuple[tuple[str, int], ...]
    """Samples of each node, by its address."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loader's figures at one moment. Times are nanoseconds of CLOCK_MONOTONIC; counts are since it was made."""

    process: int
    number: int
    """Tells the loaders of a process apart."""
    workers: int
    lanes: int
    ready: int
    """Batches ready when the last one was taken."""
    outstanding: int
    finished: bool
    """Between two epochs."""
    epoch: int
    batches: int
    samples: int
    wait_ns: int
    slow: int
    hand_offs: int
    restarts: int
    repeats: int
    skipped: int
    threshold_ns: int
    updated: int
    """When a batch was last taken."""
    began: int
    name: str
    """The name of the dataset."""
    cache: CacheFigures | None
    """The cache's figures; None without one."""
    elsewhere: ElsewhereFigures | None
    """Figures of other hosts; None where none has part in the work."""


class FiguresPage:
    """The loader's side. Writing takes a microsecond or two, once per batch."""

    def __init__(self, counters: LoaderCounters, name: str) -> None:
        with explained("make a page for the loader's figures"):
            file = os.memfd_create(NAME, os.MFD_CLOEXEC)
            try:
                os.ftruncate(file, mmap.PAGESIZE)
                self._page = mmap.mmap(file, mmap.PAGESIZE)  # keeps a descriptor of its own
            finally:
                os.close(file)
        self._counters, self._name, self._began = counters, name.encode()[:64], time.monotonic_ns()
        self._process = os.getpid()  # a forked one makes a page of its own

    def show(self, epoch: int, delivered: Delivered, now: int, *, finished: bool = False) -> None:
        counters = self._counters
        # Nobody is kept out meanwhile: a reader may see figures of two batches, which harms nobody who looks at them.
        _PAGE.pack_into(
            self._page,
            0,
            MAGIC,
            self._process,
            counters.number,
            counters.workers,
            int(counters.lane_changes.last),
            delivered.ready,
            delivered.outstanding,
            finished,
            epoch,
            counters.batches,
            counters.samples,
            int(counters.wait_seconds * 1e9),
            counters.slow,
            counters.hand_offs,
            counters.restarts,
            counters.repeats,
            counters.skipped.count,
            int(counters.thresholds.last * 1e9),
            now,
            self._began,
            self._name,
        )
        use = counters.cache
        if use.division.why:
            counts = use.encoded, use.decoded, use.augmented, use.misses, use.exchanged, use.evicted, use.bytes
            _CACHE.pack_into(self._page, _PAGE.size, *counts, *use.division.split)
        remote = counters.remote
        if remote.lanes or remote.samples:
            nodes = list(remote.nodes)
            while len(text := json.dumps(nodes).encode()) > _NODES:
                nodes.pop()
            at = _PAGE.size + _CACHE.size
            _ELSEWHERE.pack_into(self._page, at, remote.samples, remote.given_back, remote.lanes, 1, len(text))
            self._page[at + _ELSEWHERE.size : at + _ELSEWHERE.size + len(text)] = text

    def close(self) -> None:
        self._page.close()


def loaders() -> Iterator[Snapshot]:
    """The loaders of this host that this user may see, as they are now."""
    seen = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            files = list((process / "fd").iterdir())
        except OSError:  # another user's, or just ended
            continue
        for file in files:
            found = _snapshot(file, int(process.name))
            if found is not None and (found.process, found.number) not in seen:
                seen.add((found.process, found.number))
                yield found


def _snapshot(file: Path, process: int) -> Snapshot | None:
    try:
        if not str(file.readlink()).startswith(f"/memfd:{NAME}"):
            return None
        with file.open("rb") as page:
            raw = page.read(_READ)
    except OSError:
        return None
    if len(raw) < _READ:
        return None
    magic, *values, name = _PAGE.unpack_from(raw)
    if magic != MAGIC or values[0] != process:  # not written to yet, or inherited by a worker
        return None
    names = [field.name for field in fields(Snapshot)]
    found = _CACHE.unpack_from(raw, _PAGE.size)
    counts, split = dict(zip([field.name for field in fields(CacheFigures)], found, strict=False)), found[7:]
    others = {
        "name": name.rstrip(b"\0").decode(errors="replace"),
        "cache": CacheFigures(**counts | {"split": split}) if sum(split) else None,
        "elsewhere": _elsewhere(raw),
    }
    return Snapshot(**dict(zip(names, values, strict=False)) | others)


def _elsewhere(raw: bytes) -> ElsewhereFigures | None:
    at = _PAGE.size + _CACHE.size
    samples, given_back, lanes, there, size = _ELSEWHERE.unpack_from(raw, at)
    if not there:
        return None
    try:
        nodes = json.loads(raw[at + _ELSEWHERE.size :][:size])
    except ValueError:  # it was being written to
        nodes = []
    return ElsewhereFigures(samples, given_back, lanes, tuple((str(node), int(count)) for node, count in nodes))
