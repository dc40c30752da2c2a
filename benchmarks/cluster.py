"""A node is killed during an epoch: three Cassandra nodes on this machine, every row on two of them.

12,000 samples over 2000 rows of 20 kB, in batches of 32, read by one fetcher and two workers, without a relay between.
When a third of the batches has come, one node is killed (SIGKILL) and does not return. The epoch is exact when every
sample came once, with its own label. "Longest gap" is the longest time between two batches from then on.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable
from functools import partial

import headrace
from benchmarks.measure import Figures, Runs, disturbance, interleaved, isolated
from benchmarks.report import Check, Report, Table
from headrace.store.base import LabelKind, Record, Schema
from headrace.store.cassandra.store import CassandraStore
from headrace.store.url import StoreUrl
from tests.services import Unavailable, cassandra
from tests.services.__main__ import stop
from tests.services.process import Running

ROWS, SIZE, SAMPLES, BATCH = 2000, 20_000, 12_000, 32
NODES = 3


def run(*, quick: bool, say: Callable[[str], None]) -> Report | None:
    """Start the nodes; then epochs in both orders, each with all nodes at its start."""
    report, nodes = Report("cluster", __doc__ or "", quick=quick), cassandra.cluster(NODES)
    try:
        say("starting three nodes")
        failed = isolated(partial(started, nodes), limit=500)["failed"]
        if failed:
            say(f"cluster: no Cassandra here: {failed}")
            return None
        isolated(partial(prepare, nodes), limit=200)
        arms = {
            f"{'sampler' if in_order else 'completion'} order, {'a node is killed' if kill else 'all nodes stay'}": (
                partial(epoch, nodes, in_order, kill)
            )
            for in_order in (False, True)
            for kill in (False, True)
        }
        tell(report, interleaved(arms, repeats=1 if quick else 3, say=say, limit=300))
    finally:
        for node in nodes:
            stop(node.name)
    return report


def started(nodes: list[cassandra.Node]) -> Figures:
    """In a process of its own, as all that uses the driver."""
    try:
        for node, running in [(node, Running.known(node.name) or node.start()) for node in nodes]:
            node.wait_ready(running)
    except Unavailable as reason:
        return {"failed": str(reason)}
    return {"failed": ""}


def url(nodes: list[cassandra.Node]) -> str:
    hosts = ",".join(f"{node.host}:{node.port}" for node in nodes)
    login = f"{cassandra.USER}:{cassandra.PASSWORD}"
    return f"cassandra://{login}@{hosts}/cluster/rows?replication=2&connections=2&io_threads=1"


def prepare(nodes: list[cassandra.Node]) -> Figures:
    """Write the rows; a row's label is its number."""
    store = CassandraStore(StoreUrl.parse(url(nodes)))
    store.create(Schema(LabelKind.INTEGER))
    with store.writer() as writer:
        for first in range(0, ROWS, 100):
            writer.put(
                [Record(f"{number:08d}", bytes(SIZE), number, {}) for number in range(first, min(ROWS, first + 100))]
            )
    return {"rows": ROWS}


def epoch(nodes: list[cassandra.Node], in_order: bool, kill: bool) -> Figures:
    """One epoch; the node that was killed is started again afterwards."""
    dataset = headrace.StoreDataset(url(nodes), [f"{number % ROWS:08d}" for number in range(SAMPLES)], decode=len)
    seen: collections.Counter[int] = collections.Counter()
    coming, after, victim = [time.monotonic()], SAMPLES // BATCH // 3, nodes[-1]
    with headrace.DataLoader(dataset, BATCH, shuffle=True, in_order=in_order, num_workers=2) as loader:
        for number, (_, labels) in enumerate(loader):
            coming.append(time.monotonic())
            seen.update(labels.tolist())
            if kill and number == after:
                running = Running.known(victim.name)
                assert running is not None
                running.kill()
        network = loader.stats().network
    gaps = [later - sooner for sooner, later in itertools.pairwise(coming)]
    if kill:
        victim.wait_ready(victim.start())
    return {
        "exact": seen == dict.fromkeys(range(ROWS), SAMPLES // ROWS),
        "rate": SAMPLES / (coming[-1] - coming[0]),
        "gap": 1e3 * max(gaps[after + 1 :]),
        "retries": network.retries,
        "failures": network.failures,
    }


def tell(report: Report, results: dict[str, Runs]) -> None:
    """One row for each arm."""
    columns = ["", "epochs", "exact", "samples/s", "longest gap ms", "requests made again"]
    table = Table("Three nodes, replication 2", columns)
    for name, runs in results.items():
        exact = sum(figures["exact"] for figures in runs.figures)
        figures = (runs.median(key) for key in ("rate", "gap", "retries"))
        table.add(name, len(runs.figures) + len(runs.failures), exact, *figures)
        share = 100 * exact / max(1, len(runs.figures) + len(runs.failures))
        report.checks.append(Check(f"{name}: exact epochs", share, 100.0, False, "%"))
    report.tables.append(table)
    report.raw["epochs"] = {arm: vars(runs) for arm, runs in results.items()}
    report.notes.append(disturbance(results))
    report.notes += [f"{arm}: {runs.failures[0]}" for arm, runs in results.items() if runs.failures]
