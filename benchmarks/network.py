"""Rows of 100 kB from a real Cassandra server, behind a delay: MB/s, and how even the batches come.

The server is one node on this machine, with the JIT's second stage, and is warmed before anything is counted. All reads
pass through one relay (`benchmarks/proxy.py`), those at 0 ms too. Samples are the lengths of the payloads, so that
nothing but the reading costs; batches have 32 of them. headrace reads with one fetcher over eight connections and two
workers; torch's DataLoader reads the same `StoreDataset` in its workers, one row after the other in each. "First" is
the first epoch, which connects and opens the window; "later" the ones after it, with persistent workers. "Gap" is the
time between two batches, within an epoch; for torch "later" begins when every worker had its first turn. CPU is
that of the loader's processes, without relay and server.

Slow connection: each of eight carries 8 MB/s, one of them a tenth of that, 20 ms; gaps are those of the second half of
the run, when the window is open. Ramp: a trainer that takes 80
batches of 8 a second, a fixed window of 64 batches, 20 ms; the burst is the most that came in half a second of the
first half, over the mean rate of the third quarter (in the last one nothing is left to be asked for). With fewer and
larger batches it would be the number of them that happens to fall into half a second.

Start: seconds to the first batch, from before the loader is made, or from when it is iterated where it was made five
seconds earlier, as while a model is built; and to that of the second epoch, with other workers than the first.

Saturation: rows of 1, 10 and 100 kB straight from the server, 256 requests in flight. The fetcher is the process that
loaders start; what it brings is given back at once. "Driver" is acsylla alone: statements executed by tasks of an event
loop, each payload made a bytes object. Both have a thread with the event loop and one for the driver's input and
output, which together are "CPU"; the busier of them is full first, and that is the ceiling. Server and client share the
cores, so what was reached is less.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

import headrace
from benchmarks import servers
from benchmarks.clock import shared
from benchmarks.measure import Figures, Meter, Runs, disturbance, interleaved, isolated
from benchmarks.proxy import BIN_S, Link, Proxy
from benchmarks.report import Check, Report, Table
from benchmarks.saturation import saturation
from benchmarks.scope import Scope
from headrace.core.options import Loading, Prefetch
from headrace.store.base import Record, Schema
from headrace.store.cassandra.cassandra_store import CassandraStore
from headrace.store.url import StoreUrl
from tests.services import cassandra

CASES = ("distance", "window", "slow connection", "ramp", "start", "saturation")
ROUND_TRIPS = (0, 20, 150)
TARGETS = {20: 0.95, 150: 0.9}
SIZE, ROWS, BATCH, CONNECTIONS = 100_000, 2000, 32, 8
WINDOW = 4 << 20
NEAR, OPEN = Link(), Prefetch()


@dataclass(frozen=True)
class Reading:
    """One contender over one link."""

    library: str = "headrace"
    workers: int = 2
    in_order: bool = False
    link: Link = NEAR
    slow: Link | None = None
    """Of one of the connections."""
    prefetch: Prefetch = OPEN
    samples: int = 4000
    epochs: int = 3
    batch: int = BATCH
    pace: float = 0.0
    """Seconds between batches that the trainer takes, at least. It does not catch up."""
    step: float = 0.0
    """Seconds that it does something else after each."""
    ahead: float = 0.0
    """Seconds that pass, uncounted, between making the loader and using it."""
    persistent: bool = True
    seconds: float = 20.0
    """An epoch is left after so long; torch's when all workers have had their turn."""

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.library == "torch":
            return f"torch, {self.workers} workers"
        return f"headrace, {'sampler' if self.in_order else 'completion'} order"


def run(report: Report, scope: Scope) -> None:
    """Start the server, then the cases."""
    repeats = 1 if scope.quick else 3
    cases: dict[str, Callable[[], None]] = {}
    with servers.node(scope.say) as port:
        scope.say(f"{ROWS} rows of {SIZE // 1000} kB, then reads to warm the server")
        warmed = isolated(partial(prepare, port, 1.0 if scope.quick else 8.0), limit=300)
        if warmed["read"]:
            last = f"the last at {warmed['rate']:.0f} MB/s"
            report.notes.append(f"server warmed with {warmed['read'] / 1e9:.1f} GB, {last}")
        contest = partial(interleaved, repeats=repeats, say=scope.say, limit=120)
        cases = {
            "distance": partial(distance, report, contest, port, None),
            "window": partial(distance, report, contest, port, WINDOW),
            "slow connection": partial(slow_connection, report, contest, port),
            "ramp": partial(ramp, report, contest, port),
            "start": partial(start, report, contest, port),
            "saturation": partial(saturated, report, contest, port),
        }
        for name in shared(scope.chosen(CASES)):
            cases[name]()
    report.notes += [
        "other processes: Cassandra is one; it, the relay and the loader share the cores, which limits all at 0 ms",
        "the first epoch begins with connecting and an empty path; later ones are asked for behind the one before",
        "a ramp of four is 25 % by definition: what is above it are arrivals that bunch",
    ]
    report.notes.append("readers over S3 (MosaicML Streaming, LitData, WebDataset): see the experiment streaming")


def url(port: int, connections: int = CONNECTIONS, table: str = "rows") -> str:
    at = f"{cassandra.USER}:{cassandra.PASSWORD}@127.0.0.1:{port}/benchmark/{table}"
    return f"cassandra://{at}?connections={connections}&io_threads=1&timeout=30"


def keys(count: int) -> list[str]:
    """Of that many samples, the rows again and again."""
    return [f"{number % ROWS:08d}" for number in range(count)]


def prepare(port: int, gigabytes: float) -> Figures:
    """Write the rows, then read them until the server is warm, unless that was done."""
    if servers.WARMED.exists():
        return {"rate": 0.0, "read": 0}
    store, draw = CassandraStore(StoreUrl.parse(url(port))), random.Random(0)
    store.create(Schema())
    with store.writer() as writer:
        for first in range(0, ROWS, 100):
            writer.put([Record(key, draw.randbytes(SIZE), 0, {}) for key in keys(ROWS)[first : first + 100]])
    store.close()
    rate, epoch = 0.0, 4000
    epochs = max(1, round(gigabytes * 1e9 / SIZE / epoch))
    dataset = headrace.StoreDataset(url(port), keys(epoch), decode=len)
    with headrace.DataLoader(
        dataset, BATCH, num_workers=2, in_order=False, persistent_workers=True, shuffle=True
    ) as loader:
        for _ in range(epochs):
            began = time.monotonic()
            total = sum(int(sizes.sum()) for sizes, _ in loader)
            rate = total / (time.monotonic() - began) / 1e6
    servers.WARMED.touch()
    return {"rate": rate, "read": epochs * epoch * SIZE}


def read(reading: Reading, port: int) -> Figures:
    """All epochs, over a relay of their own."""
    special = {} if reading.slow is None else {CONNECTIONS // 2: reading.slow}  # number 0 is the driver's own
    with Proxy(("127.0.0.1", port), reading.link, special) as proxy:
        is_ours = reading.library == "headrace"
        at = url(proxy.port, CONNECTIONS if is_ours else 1)
        began = time.monotonic()
        dataset = headrace.StoreDataset(at, keys(reading.samples), decode=len)
        options: dict[str, Any] = {"batch_size": reading.batch, "num_workers": reading.workers, "shuffle": True}
        if is_ours:
            loading = Loading(prefetch=reading.prefetch)
            loader: Any = headrace.DataLoader(
                dataset, in_order=reading.in_order, loading=loading, persistent_workers=reading.persistent, **options
            )
        else:
            loader = DataLoader(dataset, **options, multiprocessing_context=multiprocessing.get_context("fork"))
        time.sleep(reading.ahead)
        began += reading.ahead
        with Meter() as meter:
            epochs = [_epoch(loader, reading) for _ in range(reading.epochs if is_ours else 1)]
            epochs[0][0] = began, 0
            relayed = proxy.cpu
        ended = time.monotonic()
        figures: dict[str, Any] = {
            "connections": proxy.connections,
            "sent": proxy.sent,
            "others": meter.others,
            "wall": meter.wall,
            "rates": proxy.rates(began, ended),
            "coming": epochs[0],
            "starts": [epoch[1][0] - epoch[0][0] for epoch in epochs],
        }
        if is_ours:
            network = loader.stats().network
            figures |= {"window": network.window, "retries": network.retries}
            loader.close()
    total = sum(sizes for epoch in epochs for _, sizes in epoch)
    first, later = epochs[0], epochs[1:]
    if not is_ours:
        first, later = first[: reading.workers + 1], [first[reading.workers :]]
    elif not later:
        middle = (first[0][0] + first[-1][0]) / 2
        later = [[come for come in first if come[0] >= middle]]
    gaps = sorted(gap for epoch in later for gap in _gaps(epoch[is_ours and len(epochs) > 1 :]))
    figures |= {
        "first": _rate([first]),
        "later": _rate(later),
        "p99": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] * 1e3 if gaps else float("nan"),
        "p50": statistics.median(gaps) * 1e3 if gaps else float("nan"),
        "cpu": (meter.cpu - relayed) / (total / 1e9),
        "relay cpu": relayed / (total / 1e9),
    }
    return figures


def _epoch(loader: Any, reading: Reading) -> list[tuple[float, int]]:
    """When it began, and when each batch came with how many bytes."""
    coming = [(time.monotonic(), 0)]
    turns, due = reading.workers if reading.library == "torch" else 1, 0.0
    for batch, (sizes, _) in enumerate(loader, start=1):
        coming.append((time.monotonic(), int(sizes.sum())))
        if coming[-1][0] - coming[0][0] > reading.seconds and batch % turns == 0:
            break
        time.sleep(reading.step)
        if reading.pace:
            due = max(due, coming[-1][0]) + reading.pace
            time.sleep(max(0.0, due - time.monotonic()))
    return coming


def _gaps(epoch: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds between one and the next."""
    return [after - before for (before, _), (after, _) in itertools.pairwise(epoch)]


def _rate(epochs: Sequence[Sequence[tuple[float, int]]]) -> float:
    """MB/s from the first moment of each to its last."""
    seconds = sum(epoch[-1][0] - epoch[0][0] for epoch in epochs)
    return sum(size for epoch in epochs for _, size in epoch[1:]) / seconds / 1e6 if seconds else float("nan")


def distance(report: Report, contest: Callable[..., Mapping[str, Runs]], port: int, window: int | None) -> None:
    """The same at every round trip."""
    samples = 4000 if report.quick else 8000
    arms: dict[str, Reading] = {}
    for round_trip in ROUND_TRIPS:
        link = Link(round_trip / 1e3, window)
        for reading in (
            Reading(in_order=False, link=link, samples=samples),
            Reading(in_order=True, link=link, samples=samples),
            *(
                Reading("torch", workers, True, link, samples=samples, seconds=8.0)
                for workers in (2, 8)
                if window is None
            ),
        ):
            arms[f"{round_trip} ms, {reading.name}"] = reading
    results = contest({name: partial(read, reading, port) for name, reading in arms.items()})
    limit = "no window" if window is None else f"window of {window >> 20} MiB per connection"
    columns = ["round trip, loader", "first MB/s", "later MB/s", "of 0 ms %", "gap P50 ms", "gap P99 ms", "CPU s/GB"]
    table = Table(f"Reading, {limit}, {CONNECTIONS} connections", columns)
    for name, runs in results.items():
        near = results[f"0 ms, {arms[name].name}"].median("later")
        share = runs.median("later") / near
        table.add(
            *(name, runs.median("first"), runs.median("later"), 100 * share),
            *(runs.median("p50"), runs.median("p99"), runs.median("cpu")),
        )
        target = TARGETS.get(round(arms[name].link.round_trip * 1e3))
        if target and arms[name].library == "headrace":
            report.checks.append(Check(f"{name}, {limit}: share of 0 ms", 100 * share, 100 * target, False, "%"))
    _keep(report, f"distance, {limit}", table, results)


def slow_connection(report: Report, contest: Callable[..., Mapping[str, Runs]], port: int) -> None:
    """One of eight connections carries a tenth of what the others do."""
    even, seconds = Link(0.02, rate=8e6), 10.0 if report.quick else 20.0
    arms: dict[str, Reading] = {}
    for title, slow in (("all alike", None), ("one slow", Link(0.02, rate=0.8e6))):
        for in_order in (False, True):
            reading = Reading(in_order=in_order, link=even, slow=slow, samples=20000, epochs=1, seconds=seconds)
            arms[f"{title}, {reading.name}"] = reading
    results = contest({name: partial(read, reading, port) for name, reading in arms.items()})
    columns = ["connections, loader", "all MB/s", "second half MB/s", "gap P50 ms", "gap P99 ms", "window, rows"]
    table = Table("Eight connections of 8 MB/s, one of them with a tenth", columns)
    for name, runs in results.items():
        table.add(name, *(runs.median(key) for key in ("first", "later", "p50", "p99", "window")))
    rates = [runs.median("later") for name, runs in results.items() if name.startswith("one slow")]
    report.checks.append(Check("one slow: completion order over sampler order", rates[0] / rates[1], 3.0, False, "x"))
    _keep(report, "slow connection", table, results)


def ramp(report: Report, contest: Callable[..., Mapping[str, Runs]], port: int) -> None:
    """How far the start exceeds what the trainer takes."""
    arms = {
        f"ramp={step}": Reading(
            batch=8, link=Link(0.02), prefetch=Prefetch(window=64, ramp=step), samples=6400, epochs=1, pace=0.0125
        )
        for step in (4, 0)
    }
    results = contest({name: partial(read, reading, port) for name, reading in arms.items()})
    table = Table(
        "80 batches of 8 a second are taken: MB/s on the way", ["", "most in 0.5 s", "steady", "burst above it %"]
    )
    width = round(0.5 / BIN_S)
    for name, runs in results.items():
        peaks, steadies = [], []
        for figures in runs.figures:
            rates = figures["rates"]
            steadies.append(statistics.mean(rates[len(rates) // 2 : len(rates) * 3 // 4]) / 1e6)
            peaks.append(max(statistics.mean(rates[at : at + width]) for at in range(len(rates) // 2)) / 1e6)
        peak, steady = (statistics.median(values) if values else float("nan") for values in (peaks, steadies))
        table.add(name, peak, steady, 100 * (peak / steady - 1))
        if name == "ramp=4":
            report.checks.append(Check("ramp=4: burst above steady", 100 * (peak / steady - 1), 25.0, True, "%"))
    _keep(report, "ramp", table, results)


def start(report: Report, contest: Callable[..., Mapping[str, Runs]], port: int) -> None:
    """How long the first batch takes."""
    arms = {
        f"{distance} ms, {'made five seconds before' if ahead else 'at once'}": Reading(
            link=Link(distance / 1e3), samples=20 * BATCH, epochs=2, ahead=ahead, persistent=False
        )
        for distance in ROUND_TRIPS
        for ahead in (0.0, 5.0)
    }
    results = contest({name: partial(read, reading, port) for name, reading in arms.items()})
    table = Table("Time to the first batch", ["round trip, loader", "first epoch s", "second epoch s"])
    for name, runs in results.items():
        starts = [figures["starts"] for figures in runs.figures]
        table.add(name, *(statistics.median(values) for values in zip(*starts, strict=True)))
    _keep(report, "start", table, results)


def saturated(report: Report, contest: Callable[..., Mapping[str, Runs]], port: int) -> None:
    """Where one fetcher is full."""
    _keep(report, "saturation", *saturation(contest, partial(url, port, CONNECTIONS), quick=report.quick))


def _keep(report: Report, name: str, table: Table, results: Mapping[str, Runs]) -> None:
    report.add(name, table, results)
    for runs in results.values():
        for figures in runs.figures:
            figures.pop("coming", None)
    report.notes.append(f"{name}: {disturbance(results)}")
