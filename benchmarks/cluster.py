"""An epoch during which one of three Cassandra nodes is killed: whether it is exact, and what it costs.

Three nodes on loopback addresses, every row on two of them, 6000 rows of 20 kB, batches of 32; after each batch the
trainer does nothing for 20 ms. A third of the way through the epoch a node is killed with SIGKILL, and is started
again after it. "Exact": every sample came once, with its own label and payload. Gaps are those between batches, steps
included: the longest before the kill and the longest after it. The user's role is on all three nodes, as one would
have it: with the servers' default it is on one, and dies with that one.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import threading
import time
import zlib
from collections.abc import Sequence
from functools import partial

import headrace
from benchmarks.measure import Figures, Meter, Runs, disturbance, isolated
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from headrace.core.errors import StoreError
from headrace.store import disposable
from headrace.store.base import Record, Schema
from headrace.store.cassandra import cassandra_driver
from headrace.store.cassandra.cassandra_store import CassandraStore
from headrace.store.cassandra.url_options import options
from headrace.store.url import StoreUrl
from tests.services import Unavailable, cassandra
from tests.services.process import Running
from tests.services.sharing import stop

CASES = ("completion order", "sampler order")
ROWS, SIZE, BATCH, STEP = 6000, 20_000, 32, 0.02
USER = PASSWORD = "benchmark"
ALLOWED = 2.0
"""Seconds that a death may hold batches up."""
EVERYWHERE = f"{{'class': 'NetworkTopologyStrategy', '{cassandra.DATA_CENTRE}': 3}}"
MAKE_ROLE = (
    f"ALTER KEYSPACE system_auth WITH replication = {EVERYWHERE}",
    f"CREATE ROLE IF NOT EXISTS {USER} WITH PASSWORD = '{PASSWORD}' AND LOGIN = true AND SUPERUSER = true",
)


def run(report: Report, scope: Scope) -> None:
    """Start the nodes, then an epoch in each order; None where they cannot be had."""
    nodes = cassandra.cluster(3)
    running: list[Running] = []
    try:
        scope.say("starting three nodes")
        running += [node.start() for node in nodes]
        for node, process in zip(nodes, running, strict=True):
            node.wait_ready(process)
        isolated(partial(make_role, nodes), limit=120)
        isolated(partial(fill, nodes), limit=240)
        results = {name: Runs() for name in scope.chosen(CASES)}
        for repeat, name in itertools.product(range(1 if scope.quick else 2), results):
            victim = repeat % len(nodes)
            scope.say(f"{name}, killing node {victim + 1}")
            in_order = name == "sampler order"
            epoch = partial(watched, nodes, running[victim], in_order=in_order)
            results[name].figures.append(isolated(epoch, limit=120))
            running[victim] = nodes[victim].start()
            nodes[victim].wait_ready(running[victim])
    except Unavailable as reason:
        raise LeftOut(f"no Cassandra here: {reason}") from None
    finally:
        for process in running:
            process.kill()
        for node in nodes:
            stop(node.name)
    told(report, results)


def told(report: Report, results: dict[str, Runs]) -> None:
    """The table, and what was to be reached."""
    columns = ["", "samples", "exact", "gap P50 ms", "longest before ms", "longest after ms", "retries"]
    table = Table(f"{ROWS} rows, one of three nodes killed in mid-epoch", columns)
    for name, runs in results.items():
        exact = sum(bool(figures["exact"]) for figures in runs.figures)
        table.add(
            *(name, runs.median("samples"), f"{exact} of {len(runs.figures)}"),
            *(runs.median(key) for key in ("p50", "before", "after", "retries")),
        )
        share = 100 * exact / len(runs.figures)
        report.checks.append(Check(f"{name}: epochs that were exact", share, 100.0, False, "%"))
        longest = max(figures["after"] for figures in runs.figures) / 1e3
        report.checks.append(Check(f"{name}: longest gap of all epochs", longest, ALLOWED, True, "s"))
    report.add("cluster", table, results)
    report.notes.append(disturbance(results))


def url(nodes: Sequence[cassandra.Node], user: str = USER, password: str = PASSWORD) -> str:
    at = ",".join(f"{node.host}:{node.port}" for node in nodes)
    return f"cassandra://{user}:{password}@{at}/benchmark/rows?replication=2&connections=2&timeout=10"


def payload(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def fill(nodes: Sequence[cassandra.Node]) -> Figures:
    """The rows."""
    store = CassandraStore(StoreUrl.parse(url(nodes)))
    store.create(Schema())
    with store.writer() as writer:
        for first in range(0, ROWS, 200):
            writer.put([Record(f"{n:06d}", payload(n), n, {}) for n in range(first, first + 200)])
    return {}


def make_role(nodes: Sequence[cassandra.Node]) -> Figures:
    """One that outlives a node; by the driver itself, which only processes that may be killed have."""
    disposable.declare()
    until = time.monotonic() + 60
    while True:
        try:
            asyncio.run(_make_role(StoreUrl.parse(url(nodes, cassandra.USER, cassandra.PASSWORD))))
        except (
            cassandra_driver.Failure,
            StoreError,
        ):  # ready one by one, nodes may not be so together on a busy machine
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
        else:
            return {}


async def _make_role(at: StoreUrl) -> None:
    connection = await cassandra_driver.connect(options(at)[0], cassandra_driver.Login(at.user, at.secret()), "cluster")
    try:
        for statement in MAKE_ROLE:
            await connection.query(statement)
    finally:
        await connection.close()


def watched(nodes: Sequence[cassandra.Node], victim: Running, *, in_order: bool) -> Figures:
    """One epoch, in which a node dies."""
    dataset = headrace.StoreDataset(url(nodes), [f"{n:06d}" for n in range(ROWS)], decode=zlib.crc32)
    expected = [(n, zlib.crc32(payload(n))) for n in range(ROWS)]
    seen, coming, killer = [], [], threading.Thread(target=victim.kill)
    loader = headrace.DataLoader(dataset, BATCH, shuffle=True, in_order=in_order, num_workers=2)
    with loader, Meter() as meter:
        for sums, labels in loader:
            coming.append(time.monotonic())
            seen += list(zip(labels.tolist(), sums.tolist(), strict=True))
            if len(coming) == ROWS // BATCH // 3:
                killer.start()
            time.sleep(STEP)
        killer.join()
        retries = loader.stats().network.retries
    gaps = [after - before for before, after in itertools.pairwise(coming)]
    third = ROWS // BATCH // 3
    return {
        "samples": len(seen),
        "exact": sorted(seen) == expected,
        "p50": statistics.median(gaps) * 1e3,
        "before": max(gaps[: third - 1]) * 1e3,
        "after": max(gaps[third - 1 :]) * 1e3,
        "retries": retries,
        "others": meter.others,
    }
