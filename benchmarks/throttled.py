"""A cache in Redis behind a link of 1 and 10 Gb/s: where the bottleneck moves, and whether the model says so.

One job on JPEG files (about 256 x 192, resized to 224, cropped to 192), all of which are in the cache after the first
epoch, encoded or decoded. The server is on this machine; all that it sends passes through a relay
(`benchmarks/proxy.py`), which gives each of the workers' connections its part of the link. There are four workers to a
core: some wait for the link while others compute. Measured are the third and fourth epoch, with nothing but loading;
server and relay take their time from the same cores. "Link used" is what the server sent in those epochs over what
the link could carry. Predictions are those of `plan.bottleneck`, from the rates of the same loader, server and relay
with a link without limits. A row is as predicted if the link is used to three quarters where the model says that it
sets the pace, and only there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import headrace
from benchmarks import costs, pictures
from benchmarks.arms import Arm
from benchmarks.jobs import Job
from benchmarks.measure import Figures, isolated
from benchmarks.proxy import Link, Proxy
from benchmarks.report import Check, Report, Table
from benchmarks.splits import PLENTY, entries
from benchmarks.stored import Pictures, Storage
from headrace.plan import bottleneck
from headrace.plan.parameters import Parameters
from headrace.plan.partition import Split
from tests.services import Unavailable
from tests.services.redis import fetch

GIGABIT = 1e9 / 8
LINKS = {"1 Gb/s": GIGABIT, "10 Gb/s": 10 * GIGABIT}
ENCODED, DECODED = Split(100, 0, 0), Split(0, 100, 0)
SIDE, RESIZE, CROP, BATCH = 256, 224, 192, 16
USED = 0.75


def run(*, quick: bool, say: Callable[[str], None]) -> Report | None:
    """Links and splits; nothing where Redis cannot be had."""
    report = Report("throttled", __doc__ or "", quick=quick)
    count = (200 if quick else 500) * max(costs.cores() // 2, 1)
    try:
        fetch()
    except Unavailable as reason:
        say(f"throttled: skipped, {reason}")
        return None
    with tempfile.TemporaryDirectory(prefix="headrace-throttled-") as place, redis(Path(place) / "redis") as port:
        folder = Path(place) / "files"
        say(f"writing {count} files")
        pictures.write(folder, count, costs.cores(), side=SIDE)
        compare(report, Pictures(folder, count, Storage(count), resize=RESIZE, crop=CROP), port, say)
    return report


def compare(report: Report, dataset: Pictures, port: int, say: Callable[[str], None]) -> None:
    """One table."""
    workers, count = 4 * costs.cores(), len(dataset)
    arm = Arm("headrace", in_order=False, workers=workers)
    encoded, decoded = entries(dataset)
    say("parameters")
    bare, free = (through(arm, dataset, port, split, PLENTY)["rate"] for split in (ENCODED, DECODED))
    title = f"{count} files, {workers} workers; entries of {encoded / 1e3:.0f} and {decoded / 1e3:.0f} KB; "
    title += f"decoding {bare:.0f} images/s, augmenting {free:.0f} images/s"
    columns = ["link, split", "measured images/s", "predicted", "limit", "link used %", "as predicted"]
    table = Table(title, columns)
    for name, rate in LINKS.items():
        given = Parameters(
            t_gpu=PLENTY,
            t_da=bare,
            t_a=free,
            b_nic=PLENTY,
            b_pcie=PLENTY,
            b_cache=rate,
            b_storage=PLENTY,
            s_cache=2.0 * count * (encoded + decoded),
            s_data=encoded,
            n_total=count,
            m=decoded / encoded,
        )
        rates, predicted = [], []
        for split in (ENCODED, DECODED):
            say(f"{name}, {split}")
            found = through(arm, dataset, port, split, rate)
            said = bottleneck.predict(given, split)
            limit = bottleneck.bottleneck(given, said.held)
            used = found["sent"] / rate
            agrees = (used >= USED) == (limit == "cache")
            shown = "link" if limit == "cache" else limit
            table.add(f"{name}, {split}", found["rate"], said.throughput, shown, 100 * used, "yes" if agrees else "no")
            report.checks.append(Check(f"{name}, {split}, limit as predicted", float(agrees), 1.0, False))
            report.raw[f"{name}, {split}"] = {**found, "predicted": said.throughput, "limit": limit}
            rates.append(found["rate"])
            predicted.append(said.throughput)
        agrees = (rates[0] > rates[1]) == (predicted[0] > predicted[1])
        report.checks.append(Check(f"{name}, the better form is the one predicted", float(agrees), 1.0, False))
    report.tables.append(table)


def through(arm: Arm, dataset: Any, port: int, split: Split, rate: float) -> dict[str, Any]:
    """Behind a link of so many bytes a second, from an empty cache."""
    with Proxy(("127.0.0.1", port), Link(rate=rate / (arm.workers or 1))) as proxy:
        cache = headrace.Cache(
            f"redis://127.0.0.1:{proxy.port}",
            size="4GiB",
            split=(split.encoded, split.decoded, split.augmented),
            namespace=f"benchmark-{time.monotonic_ns()}",
        )
        found = isolated(partial(load, arm, dataset, cache))
        sent = proxy.rates(found["began"], found["ended"])
    return {**found, "sent": sum(sent) / max(len(sent), 1)}


def load(arm: Arm, dataset: Any, cache: headrace.Cache) -> Figures:
    """Images per second in the third and fourth epoch, and when these were."""
    walls = Job(arm, dataset, 4, BATCH, cache=cache).run()["walls"]
    ended = time.monotonic()
    return {"rate": 2 * len(dataset) / sum(walls[2:]), "began": ended - sum(walls[2:]), "ended": ended}


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A server of its own, without a password, on the loopback only; its port."""
    folder.mkdir()
    program = fetch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [str(program.path), *options], stdout=log, stderr=log, env={**os.environ, **program.env}
        )
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()
