"""A cache in Redis behind a link of 1 and 10 Gb/s: where the bottleneck moves, and whether the models say so.

One job on JPEG files (about 256 x 192, resized to 224, cropped to 192), all of which are in the cache after the first
epoch, encoded or decoded. The server is on this machine; all that it sends passes through a relay
(`benchmarks/proxy.py`), which has it wait for one line of the stated rate that all connections share. There are four
workers to a core: some wait for the link while others compute. Measured are the third to fifth epoch, with nothing but
loading; server and relay take their time from the same cores. "Link used" is what the server sent in those epochs over
what the link could carry. Predictions are those of `plan.bottleneck`, from the rates of the same loader, server and
relay with a link without limits. A row is as predicted if the link is used to three quarters where the model says that
it sets the pace, and only there. "Planned" is a loader whose cache has no fixed split: it begins with decoded samples,
measures, and may move; the form that it ends with is to be the one that was measured to be faster, unless that is by
less than 5 %, for which nothing is moved.
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
from benchmarks import calibration, costs, pictures
from benchmarks.arms import Arm
from benchmarks.calibration import Rates, Sizes
from benchmarks.measure import isolated
from benchmarks.proxy import Link, Proxy
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from benchmarks.stored import Pictures, Storage
from headrace.plan import bottleneck
from headrace.plan.partition import Split
from headrace.plan.splitting import GAIN
from tests.services import Unavailable
from tests.services.redis import fetch

GIGABIT = 1e9 / 8
LINKS = {"1 Gb/s": GIGABIT, "10 Gb/s": 10 * GIGABIT}
ENCODED, DECODED = Split(100, 0, 0), Split(0, 100, 0)
SIDE, RESIZE, CROP, BATCH = 256, 224, 192, 16
USED = 0.75
EPOCHS, PLANNING = 5, 16
"""Epochs with a split, and without: until the loader has looked some times at what it measures."""


def run(report: Report, scope: Scope) -> None:
    """Links and splits; nothing where Redis cannot be had."""
    count = (200 if scope.quick else 500) * max(costs.cores() // 2, 1)
    try:
        fetch()
    except Unavailable as reason:
        raise LeftOut(str(reason)) from None
    with tempfile.TemporaryDirectory(prefix="headrace-throttled-") as place, redis(Path(place) / "redis") as port:
        folder = Path(place) / "files"
        scope.say(f"writing {count} files")
        pictures.write(folder, count, costs.cores(), side=SIDE)
        compare(report, Pictures(folder, count, Storage(count), resize=RESIZE, crop=CROP), port, scope.say)


def compare(report: Report, dataset: Pictures, port: int, say: Callable[[str], None]) -> None:
    """One table."""
    workers, count = 4 * costs.cores(), len(dataset)
    arm = Arm("headrace", in_order=False, workers=workers)
    sizes = Sizes.of(dataset)
    say("parameters")
    rates = Rates(*(through(arm, dataset, port, split, None)["rate"] for split in (ENCODED, DECODED)))
    title = f"{count} files, {workers} workers; entries of {sizes.encoded / 1e3:.0f} and {sizes.decoded / 1e3:.0f} KB; "
    title += f"decoding {rates.decoding:.0f} images/s, augmenting {rates.augmenting:.0f} images/s"
    columns = ["link, split", "measured images/s", "predicted", "limit", "link used %", "as predicted"]
    table, others = Table(title, columns), []
    for name, rate in LINKS.items():
        given = calibration.parameters(sizes, rates, samples=count, room=1e3 * count * sizes.decoded, link=rate)
        real, predicted = {}, {}
        for split in (ENCODED, DECODED):
            say(f"{name}, {split}")
            found = through(arm, dataset, port, split, rate)
            said = bottleneck.predict(given, split)
            limit = bottleneck.bottleneck(given, said.held)
            used = found["sent"] / rate
            agrees = (used >= USED) == (limit == "cache")
            shown = "link" if limit == "cache" else limit
            table.add(f"{name}, {split}", found["rate"], said.throughput, shown, 100 * used, "yes" if agrees else "no")
            report.checks.append(Check(f"{name}, {split}, limit as predicted", float(agrees), 1.0, at_most=False))
            report.raw[f"{name}, {split}"] = {**found, "predicted": said.throughput, "limit": limit}
            real[split], predicted[split] = found["rate"], said.throughput
            others.append(found["others"])
        agrees = max(real, key=lambda split: real[split]) == max(predicted, key=lambda split: predicted[split])
        report.checks.append(Check(f"{name}, the better form is the one predicted", float(agrees), 1.0, at_most=False))
        say(f"{name}, planned")
        found = through(arm, dataset, port, None, rate)
        division = found["division"]
        chosen = Split(*division["split"])
        likes = ENCODED if chosen.encoded > chosen.decoded else DECODED
        good = real[likes] * (1 + GAIN) >= max(real.values())
        why = division["why"].partition(",")[0]
        used = 100 * found["sent"] / rate
        table.add(f"{name}, planned: {chosen}", found["rate"], "", why, used, "yes" if good else "no")
        report.checks.append(Check(f"{name}, the form planned is the better one", float(good), 1.0, at_most=False))
        report.raw[f"{name}, planned"] = found
    report.tables.append(table)
    report.notes.append(f"others, the server and the relay among them, kept up to {max(others):.1f} cores busy")


def through(arm: Arm, dataset: Any, port: int, split: Split | None, line: float | None) -> dict[str, Any]:
    """Behind a link of so many bytes a second, from an empty cache; ``split`` None: the loader plans one."""
    with Proxy(("127.0.0.1", port), Link(), line=line) as proxy:
        cache = headrace.Cache(
            f"redis://127.0.0.1:{proxy.port}",
            size="4GiB",
            split=None if split is None else tuple(split),
            namespace=f"benchmark-{time.monotonic_ns()}",
        )
        epochs = PLANNING if split is None else EPOCHS
        found = isolated(partial(calibration.load, arm, dataset, cache, BATCH, epochs=epochs))
        sent = proxy.rates(found["began"], found["ended"])
    return {**found, "sent": sum(sent) / max(len(sent), 1)}


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
