"""What a cache costs where much is large: samples of a dataset, and ranks that share a server.

*Samples*: a rank of a job alone, through the loader's own groups and the cache's own rules, over a cache in shared
memory; batches of 64. Its own memory is what the process grows by when the epoch begins; the order of the samples comes
from a formula, so a sampler's own list is not in it. "State" is what `state_dict()` asks of the groups, in the middle
of the epoch: of a job alone, and of one that was served others than it drew. "Recount" is the look at the whole table,
outside of any lock, that a rank takes at most once in 100 times as long as it takes.

*Ranks*: 16 jobs of as many ranks as are needed, each with an epoch of its own part of 131,072 samples under way, all in
one process, on one Redis server; nothing is kept, so that only bookkeeping is measured. A request is one batch of 64
with what follows it; a look is what each rank takes at all others now and then (at most every two seconds, and every
66 where there are 1,024). The server's time is the CPU time that it counts itself. "On a cluster" is the same on three
servers that are one cluster, whose times are added up: keys that change together lie together, entries are spread.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from benchmarks import caches
from benchmarks.clock import check_time
from benchmarks.measure import isolated
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from benchmarks.throttled import redis
from headrace.cache.backends import redis_tables
from headrace.cache.backends.redis_server import RedisServer
from headrace.cache.cache_options import open_share
from headrace.cache.division import Rank
from headrace.cache.peers import Unit
from headrace.cache.policies import Need
from headrace.cache.remaining import Remaining
from headrace.cache.serving import Serving
from headrace.cache.share import Share
from headrace.caching.exchange import ExchangedGroups, SampleIds
from headrace.caching.membership import Hits
from headrace.engine.trainer.counters import LoaderCounters
from headrace.sched.source import Group
from tests.cache import servers

BATCH, STEPS = 64, 200
SCOPES = ("a" * 32, "b" * 32, "c" * 32)
JOBS = 16


class Drawn:
    """Groups of an epoch in an order that takes no memory."""

    def __init__(self, samples: int) -> None:
        self._samples, self._at = samples, 0

    is_drawn = False

    def next(self) -> Group:
        numbers = np.arange(self._at, self._at + BATCH, dtype=np.int64)
        self._at += BATCH
        return Group((numbers * 7_368_787 % self._samples).tolist())

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        return {"pending": owed}


CASES = ("samples", "ranks", "cluster")


def run(report: Report, scope: Scope) -> None:
    """One table for each."""
    for case in scope.chosen(CASES):
        if case == "samples":
            samples_of(report, scope.say)
        else:
            ranks_of(report, scope.say, clustered=case == "cluster")


def samples_of(report: Report, say: Callable[[str], None]) -> None:
    """Ever more of them."""
    columns = ["bytes a sample, own", "µs CPU a request", "ms state, alone", "ms state, exchanged", "ms recount"]
    table = Table("samples", ["samples", *columns])
    for samples in (1_000_000, 10_000_000, *(() if report.quick else (100_000_000,))):
        say(f"{samples:,} samples")
        found = isolated(partial(epoch, samples), limit=600)
        table.add(f"{samples:,}", *(found[key] for key in ("own", "request", "alone", "strayed", "recount")))
        report.raw[f"{samples} samples"] = found
    report.tables.append(table)
    report.checks.append(Check(f"{samples:,} samples, own memory", found["own"], 8.0, at_most=True, unit="bytes each"))
    report.checks.append(Check(f"{samples:,} samples, state, alone", found["alone"], 10.0, at_most=True, unit="ms"))


def ranks_of(report: Report, say: Callable[[str], None], *, clustered: bool) -> None:
    """Ever more of them."""
    where = "a cluster of three" if clustered else "one server"
    columns = ["ms wall a request", "µs CPU of the rank", "µs CPU of the server", "ms a look", "µs server a look"]
    table = Table(f"ranks on {where}", ["ranks", *columns])
    for ranks in (16, 128, *(() if report.quick else (1024,))):
        say(f"{ranks} ranks on {where}")
        found = isolated(partial(served, ranks, clustered=clustered), limit=600)
        table.add(str(ranks), *(found[key] for key in ("wall", "client", "server", "look", "look server")))
        report.raw[f"{ranks} ranks on {where}"] = found
    report.tables.append(table)


def epoch(samples: int) -> dict[str, float]:
    """One job's."""
    check_time()
    with caches.cache(8 * samples + (64 << 20)) as cache:
        share = open_share(cache, SCOPES, samples, Unit("0" * 16, "0-0"))
        serving = Serving(share)
        before = resident()
        groups = ExchangedGroups(
            Drawn(samples),  # type: ignore[arg-type]
            serving,  # type: ignore[arg-type]
            SampleIds(range(samples), None, samples, samples),
            Hits(LoaderCounters()),
            np.empty(0, np.int64),
        )
        step(groups)
        groups._served[:] = 0  # as at the end of the epoch: all of it is in use
        own = (resident() - before) / samples
        began = time.process_time()
        for _ in range(STEPS):
            step(groups)
        request = 1e6 * (time.process_time() - began) / STEPS
        alone = timed(lambda: groups.state([]))
        half = groups._left().some(samples // 2, np.empty(0, np.int64))
        groups._left().take(half)  # as if another had been there
        groups._served[groups._count : groups._count + len(half)] = half
        groups._count += len(half)
        groups._strayed = True
        strayed = timed(lambda: groups.state([]))
        recount = timed(serving.recount)
        serving.end()
        share.close()
    return {"own": own, "request": request, "alone": alone, "strayed": strayed, "recount": recount}


def step(groups: ExchangedGroups) -> None:
    groups.next()


def timed(act: Callable[[], object]) -> float:
    """Milliseconds, the least of three."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        found.append(1e3 * (time.perf_counter() - began))
    return min(found)


def resident() -> int:
    """Bytes of memory that this process has for itself."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) - int(Path("/proc/self/statm").read_text().split()[2])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def port_of(place: Path, *, clustered: bool) -> Iterator[int]:
    """A server's, or that of one in a cluster."""
    if clustered:
        with servers.cluster(place) as members:
            yield members[0].port
    else:
        with redis(place / "redis") as port:
            yield port


def served(ranks: int, *, clustered: bool) -> dict[str, float]:
    """All ranks, in turn."""
    check_time()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (8 if clustered else 2) * ranks + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted)), hard))
    samples = 1 << 17
    with (
        tempfile.TemporaryDirectory(prefix="headrace-scale-") as place,
        port_of(Path(place), clustered=clustered) as port,
    ):
        url = f"redis://127.0.0.1:{port}"
        parts = np.array_split(np.random.default_rng(1).permutation(samples), ranks // JOBS)
        servings, left = [], []
        for rank in range(ranks):
            job, part = rank % JOBS, parts[rank // JOBS]
            backend = redis_tables.opened(url, headrace.Cache(url).namespace, "0" * 16, samples)
            share = Share(backend, None, SCOPES, 1 << 30, Unit(f"{job:016x}", f"{job}-0"), Need())
            servings.append(Serving(share))
            rng = np.random.default_rng(rank)
            left.append(Remaining(samples, part, np.empty(0, np.int64), rng))
        for serving in servings:
            serving.begin()
        server = servings[0].share.backend.server  # type: ignore[attr-defined]
        count = max(2, 2048 // ranks)

        def all_of() -> None:
            for _ in range(count):
                for serving, remaining in zip(servings, left, strict=True):
                    answer = serving.request(remaining.some(BATCH, np.empty(0, np.int64)), remaining)
                    remaining.take(answer.samples)
                    serving.saw(answer.samples)

        heard_of(servings)
        wall, used, on_server = costs(server, all_of)
        heard_of(servings)
        looks = servings[:: max(1, ranks // 32)]
        look, _, look_server = costs(server, lambda: [each.share.peers.look(now=True) for each in looks])
        for serving in servings:
            serving.end()
            serving.share.close()
    each = ranks * count
    return {
        "wall": 1e3 * wall / each,
        "client": 1e6 * used / each,
        "server": 1e6 * on_server / each,
        "look": 1e3 * look / len(looks),
        "look server": 1e6 * look_server / len(looks),
    }


def heard_of(servings: list[Serving]) -> None:
    """All ranks say that they are there: a server forgets those who have not for a minute."""
    for serving in servings:
        serving.report(Rank())
    there = len(servings[0].share.backend.reports())
    if there != len(servings):
        raise RuntimeError(f"{there} of {len(servings)} ranks are there: the server is too slow, or this machine")


def costs(server: RedisServer, act: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds: by the clock, of this process's CPU time, and of the server's, or of all of a cluster's."""

    def on_server() -> float:
        if server.clustered:
            found = server.client.info("cpu", target_nodes=server.client.ALL_NODES).values()
        else:
            found = [server.client.info("cpu")]
        return sum(float(each["used_cpu_sys"] + each["used_cpu_user"]) for each in found)

    before, began, used = on_server(), time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - used, on_server() - before
