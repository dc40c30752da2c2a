"""The first epoch over shards in a bucket: headrace, and the libraries that stream shards from an object server.

The bucket is a folder behind VersityGW, an S3 server, on this machine; between it and each reader is a relay with a
round trip (`benchmarks/proxy.py`). Each reads the shards that its own writer made, of 64 MiB and 1 GB in all, which lie
there several times under other names where more is to be read. The server keeps connections open for all but MosaicML
Streaming, whose runs against such a server hang or fail half of the time. Everybody reads all samples once, in random
order, keeps nothing from one run to the next, and has the lengths of the payloads for samples, so that nothing but the
reading costs. headrace: two workers, 1 GB of memory, completion order, where nothing else is said. The others: eight
workers. MosaicML Streaming shuffles with its default, py1e; WebDataset is read by curl, shuffles shards, and samples in
a buffer of a thousand in each worker; LitData shuffles chunks, and samples within each. How random these orders are
says the experiment shuffle.

The clock starts before a dataset is opened, with everything imported: the index, workers and connections are part of
the first batch. CPU is that of the reader's processes, without relay and server. One that takes longer than its time
is left there. Waits are those for a batch after the first, while the reader keeps a pace. "New connections": each pays
a round trip for its handshake, and its window begins at ten segments (MosaicML Streaming gave no batch there within two
minutes, and is left out). "Late answers": one request in a hundred takes
two seconds more, and a batch is taken every 30 ms, in sampler order. "Without an index": tars whose headers nobody has
read before, beside the same a second time. "One cache": three jobs with a shared cache that begin together; of one
job's are the bytes that the server sent, over those of a job by itself.

Where a machine has four cores or more, a reader has two of them for itself, its relay one, and its servers one; where
it has more, several run at once, each with cores of its own. Else all share what there is. The others need versions of
what headrace needs that are not ours, so they have an environment of their own (`make bench-peers`).
"""

from __future__ import annotations

import fcntl
import importlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import headrace
from benchmarks.clock import shared
from benchmarks.measure import Figures, Isolated, Meter, Runs, disturbance, interleaved
from benchmarks.proxy import Link, Proxy
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from headrace.store import open_store
from tests.services import HOME, Unavailable, versitygw

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = (PYTHON, "-P", ROOT / "benchmarks" / "streamers.py")
"""-P: this folder has modules with names of theirs."""
FOLDER = HOME / "data" / "versitygw" / "objects" / versitygw.BUCKET
IMPORTED = (
    "loader",
    "dataset",
    "cache.cache_options",
    "store.shards.remote_shards",
    "store.shards.urls",
    "store.objects",
)
IMPORTED += ("store.shards.mds", "store.shards.webdataset", "store.shards.npy")
MEMORY = 1 << 30
FAR, NEAR = Link(0.15), Link(0.02)
MOSAIC, WEBDATASET, LITDATA = "MosaicML Streaming", "WebDataset", "LitData"
OURS, TARS = "headrace", "headrace, tars"
ORDERED, UNKNOWN, CACHED = "headrace, sampler order", "headrace, tars without an index", "headrace, three jobs"


@dataclass(frozen=True)
class Case:
    """What is read, over which link, and by whom."""

    size: int
    link: Link
    arms: tuple[str, ...]
    gigabytes: int = 5
    every: int = 1
    pace: float = 0.0
    """Seconds between batches that the reader takes, at least."""
    seconds: float = 20.0

    @property
    def batch(self) -> int:
        """Samples in one: 3.2 MB, within reason."""
        return max(8, min(256, 3_200_000 // self.size))

    @property
    def written(self) -> tuple[int, int]:
        """Samples that are written, and how often they lie there."""
        return 1_000_000_000 // self.size, self.gigabytes


CASES: Mapping[str, Case] = {
    "100 KB, 150 ms": Case(100_000, FAR, (OURS, WEBDATASET, MOSAIC, LITDATA)),
    "100 KB, 20 ms": Case(100_000, NEAR, (OURS, WEBDATASET, MOSAIC)),
    "10 KB, 150 ms": Case(10_000, FAR, (OURS, WEBDATASET, MOSAIC), gigabytes=2),
    "10 KB, 20 ms": Case(10_000, NEAR, (OURS, WEBDATASET, MOSAIC), gigabytes=2),
    "100 KB, 150 ms, every tenth sample": Case(100_000, FAR, (OURS, MOSAIC), every=10),
    "256 KB, 150 ms, every tenth sample": Case(256_000, FAR, (OURS,), gigabytes=2, every=10),
    "100 KB, 150 ms, new connections": Case(100_000, replace(FAR, fresh=True), (OURS, WEBDATASET)),
    "100 KB, 150 ms, late answers": Case(
        100_000, replace(FAR, late=0.01), (ORDERED,), gigabytes=1, pace=0.03, seconds=30.0
    ),
    "100 KB, 150 ms, without an index": Case(100_000, FAR, (UNKNOWN, TARS), gigabytes=1),
    "100 KB, 20 ms, one cache": Case(100_000, NEAR, (OURS, CACHED), gigabytes=1),
}


@dataclass(frozen=True)
class Place:
    """A set of cores with servers of its own, for one run at a time; None: wherever there is room."""

    lock: Path
    reader: frozenset[int] | None = None
    relay: int | None = None
    server: frozenset[int] | None = None
    ports: tuple[int, int] = (0, 0)
    """Of the server that closes its connections, and of the one that keeps them."""


CORES = 4
"""Of a place: two for the reader, one for the relay, one for the servers."""


def divided(folder: Path) -> list[Place]:
    """This process's cores, in as many places as there are cores for."""
    here = sorted(os.sched_getaffinity(0))
    if len(here) < CORES:
        return [Place(folder / "0")]
    sets = [here[first : first + CORES] for first in range(0, len(here) - CORES + 1, CORES)]
    return [
        Place(folder / str(number), frozenset(cores[:2]), cores[2], frozenset(cores[3:]))
        for number, cores in enumerate(sets)
    ]


@contextmanager
def occupied(places: Sequence[Place]) -> Iterator[Place]:
    """A place where nobody else is; there are as many as runs at once."""
    with ExitStack() as stack:
        for place in places:
            file = stack.enter_context(place.lock.open("w"))
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield place
                return
        raise RuntimeError("more runs at once than places")


def run(report: Report, scope: Scope) -> None:
    """Start both servers, then the cases; None where they cannot be had, or nobody to compare with."""
    if not PYTHON.exists():
        raise LeftOut("the libraries to compare with are not there; make bench-peers installs them")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-places-")))
        try:
            places = [started(place, stack) for place in divided(folder)]
        except Unavailable as reason:
            raise LeftOut(f"no S3 server here: {reason}") from None
        if places[0].reader is not None:
            report.notes.append(
                f"up to {len(places)} runs at once, each reader with two cores of its own, its relay and its servers "
                "with one each"
            )
        for name in shared(scope.chosen(list(CASES))):
            case = CASES[name] if not scope.quick else replace(CASES[name], gigabytes=1, seconds=5.0)
            written(case, scope.say)
            conducted(report, name, case, places, 1 if scope.quick else 3, scope.say)


def started(place: Place, stack: ExitStack) -> Place:
    """The place with its servers, which end with the stack."""
    ports = []
    for keep_alive in (False, True):
        name = f"versitygw-{place.lock.name}-{'keeping' if keep_alive else 'closing'}"
        server = versitygw.start(name, keep_alive=keep_alive, cores=place.server)
        stack.callback(server.stop)
        ports.append(server.ports["s3"])
    return replace(place, ports=(ports[0], ports[1]))


def prefix(case: Case) -> str:
    """Where its shards lie."""
    return f"{case.size}-{case.gigabytes}"


def written(case: Case, say: Callable[[str], None]) -> None:
    """The shards, as the libraries' own writers make them, in the folder that the server serves; made once."""
    folder = FOLDER / prefix(case)
    done = folder.with_suffix(".done")
    if done.exists():
        return
    samples, times = case.written
    say(f"{samples} samples of {case.size // 1000} kB as shards, {times} times")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [*PEERS, "write", folder, str(samples), str(case.size), str(times)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    done.touch()


def conducted(
    report: Report, name: str, case: Case, places: Sequence[Place], repeats: int, say: Callable[[str], None]
) -> None:
    """All contenders over one link."""
    measured = {CACHED: sharing, **dict.fromkeys((OURS, ORDERED, TARS, UNKNOWN), own)}
    arms = {arm: partial(measured.get(arm, peer), arm, case, places) for arm in case.arms}
    results = interleaved(arms, repeats=repeats, say=say, limit=120, at_once=len(places))
    columns: list[tuple[str, Any]] = [
        ("MB/s", "rate"),
        ("least to most", lambda runs: runs.spread("rate")),
        ("first batch s", "start"),
        ("wait P50 ms", "p50"),
        ("wait P99 ms", "p99"),
        ("CPU s/GB", "cpu"),
        ("MB sent / MB read", "sent"),
    ]
    report.add(name, Table.of(f"{name}: the first epoch", "", columns, results), results)
    report.checks += checks(name, results)
    report.notes.append(f"{name}: {disturbance(results)}")
    for runs in results.values():
        for figures in runs.figures:
            figures.pop("coming", None)


def checks(name: str, results: Mapping[str, Runs]) -> list[Check]:
    """What this case is held against."""

    def of(arm: str, key: str) -> float:
        return results[arm].median(key) if arm in results else float("nan")

    found = []
    if OURS in results:
        rate = of(OURS, "rate")
        goals = {WEBDATASET: 1.3, MOSAIC: 5.0 if "tenth" in name else 2.4 if name.startswith("100 KB") else 1.3}
        for other, goal in goals.items():
            if other in results:
                found.append(Check(f"{name}: over {other}", rate / of(other, "rate"), goal, False, "x"))
        if "tenth" not in name and "cache" not in name:
            found.append(Check(f"{name}: bytes sent", of(OURS, "sent"), 1.02, True, "x"))
            found.append(Check(f"{name}: CPU", of(OURS, "cpu"), 1.5, True, "s/GB"))
        if name.startswith("100 KB, 150 ms"):
            found.append(Check(f"{name}: first batch", of(OURS, "start"), 0.8, True, "s"))
        if name.startswith("256 KB"):
            found.append(Check(f"{name}: bytes sent", of(OURS, "sent"), 1.1, True, "x"))
    if ORDERED in results:
        found.append(Check(f"{name}: P99 wait", of(ORDERED, "p99"), 5.0, True, "ms"))
        found.append(Check(f"{name}: bytes sent", of(ORDERED, "sent"), 1.02, True, "x"))
    if UNKNOWN in results:
        found.append(Check(f"{name}: of the rate with one", of(UNKNOWN, "rate") / of(TARS, "rate"), 0.7, False, "x"))
    if CACHED in results:
        found.append(Check(f"{name}: bytes of one job's", of(CACHED, "sent") / of(OURS, "sent"), 1.2, True, "x"))
    return found


def own(arm: str, case: Case, places: Sequence[Place]) -> Figures:
    """headrace's first epoch."""
    kind = "wds" if arm in (TARS, UNKNOWN) else "mds"
    with (
        tempfile.TemporaryDirectory(prefix="headrace-index-") as folder,
        occupied(places) as place,
        Proxy(("127.0.0.1", place.ports[True]), case.link, core=place.relay) as proxy,
    ):
        _prepared(place)
        where = url(case, kind, proxy.port, folder)
        if arm == TARS:
            Isolated(partial(_indexed, where)).result()
        sent, relayed = proxy.sent, proxy.cpu
        with Meter() as meter:
            coming = epoch(arm, case, where)
            relayed = proxy.cpu - relayed
        return _figures(coming, meter.cpu - relayed, meter.others, proxy.sent - sent)


def _indexed(place: str) -> Figures:
    """Headers of tars are read, and kept."""
    store = open_store(place)
    return {"samples": len(store.keys())}


def url(case: Case, kind: str, port: int, folder: str) -> str:
    """A store's. ``folder``: where the headers of tars are kept."""
    who = f"{versitygw.KEY_ID}:{versitygw.SECRET}"
    place = f"{kind}+s3://{who}@{versitygw.BUCKET}/{prefix(case)}/{kind}?endpoint=http://127.0.0.1:{port}"
    return f"{place}&index={folder}/index" if kind == "wds" else place


def epoch(arm: str, case: Case, place: str, cache: headrace.Cache | None = None) -> list[tuple[float, int, float]]:
    """When it began, and when each batch came, with how many bytes, and how long the reader waited for it."""
    loading = headrace.Loading(prefetch=headrace.Prefetch(memory=MEMORY))
    began = time.monotonic()
    coming, due = [(began, 0, 0.0)], 0.0
    dataset: Any = headrace.StoreDataset(place, decode=len)
    if case.every > 1:
        dataset = headrace.StoreDataset(place, dataset.keys[:: case.every], decode=len)
    loader = headrace.DataLoader(
        dataset,
        case.batch,
        shuffle=True,
        num_workers=2,
        in_order=arm == ORDERED,
        loading=loading,
        cache=cache,
    )
    with loader:
        asked = time.monotonic()
        for sizes, *_ in loader:
            now = time.monotonic()
            coming.append((now, int(sizes.sum()), now - asked))
            if now - began > case.seconds:
                break
            if case.pace:
                due = max(due, now) + case.pace
                time.sleep(max(0.0, due - time.monotonic()))
            asked = time.monotonic()
    return coming


def sharing(_: str, case: Case, places: Sequence[Place]) -> Figures:
    """Three jobs at once, with one cache that has room for everything."""
    name = f"shm://streaming-{os.getpid()}"
    with (
        occupied(places) as place,
        Proxy(("127.0.0.1", place.ports[True]), case.link, core=place.relay) as proxy,
    ):
        _prepared(place)
        where = url(case, "mds", proxy.port, "")
        with Meter() as meter:
            jobs = [Isolated(partial(_job, case, where, name), limit=100) for _ in range(3)]
            comings = [job.result()["coming"] for job in jobs]
            relayed = proxy.cpu
        found = _figures(comings[0], 0.0, meter.others, proxy.sent)
        total = sum(size for coming in comings for _, size, _ in coming)
        began = min(coming[0][0] for coming in comings)
        rate = total / (max(coming[-1][0] for coming in comings) - began) / 1e6
        return {**found, "rate": rate, "cpu": 1e9 * (meter.cpu - relayed) / total}


def _job(case: Case, place: str, name: str) -> Figures:
    return {"coming": epoch(CACHED, case, place, headrace.Cache(name, size=2 * case.gigabytes << 30))}


def peer(library: str, case: Case, places: Sequence[Place]) -> Figures:
    """Another library's, in its own environment."""
    with (
        occupied(places) as place,
        Proxy(("127.0.0.1", place.ports[library != MOSAIC]), case.link, core=place.relay) as proxy,
    ):
        _prepared(place)
        what = {
            "library": library,
            "endpoint": f"http://127.0.0.1:{proxy.port}",
            "key": versitygw.KEY_ID,
            "secret": versitygw.SECRET,
            "bucket": versitygw.BUCKET,
            "prefix": prefix(case),
            "folder": str(FOLDER / prefix(case)),
            "batch": case.batch,
            "workers": 8,
            "seconds": case.seconds / 2 if library == LITDATA else case.seconds,
            "every": case.every,
        }
        command = [*PEERS, "read", json.dumps(what)]
        with Meter() as meter:
            done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
            relayed, sent = proxy.cpu, proxy.sent
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    return _figures(json.loads(done.stdout.splitlines()[-1]), meter.cpu - relayed, meter.others, sent)


def _prepared(place: Place) -> None:
    """Everything is imported, and all that this process starts from now on has the reader's cores."""
    for module in IMPORTED:
        importlib.import_module(f"headrace.{module}")
    if place.reader is not None:
        os.sched_setaffinity(0, place.reader)


def _figures(coming: Sequence[tuple[float, int, float]], cpu: float, others: float, sent: int) -> dict[str, Any]:
    """MB/s from the beginning to the last batch, how the batches came, and what that cost."""
    times = [moment for moment, _, _ in coming]
    waits = sorted(wait for _, _, wait in itertools.islice(coming, 2, None)) or [float("nan")]
    total = sum(size for _, size, _ in coming)
    return {
        "rate": total / (times[-1] - times[0]) / 1e6,
        "start": times[1] - times[0],
        "p50": statistics.median(waits) * 1e3,
        "p99": waits[min(len(waits) - 1, int(0.99 * len(waits)))] * 1e3,
        "cpu": 1e9 * cpu / total,
        "others": others,
        "sent": sent / total,
        "batches": len(coming) - 1,
        "coming": coming,
    }
