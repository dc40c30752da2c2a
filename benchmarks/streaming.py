"""The first epoch over a distance: headrace, and the libraries that stream shards from an object server.

Samples of 100 kB, each read once, in batches of 32, from servers on this machine behind one relay
(`benchmarks/proxy.py`): Cassandra (headrace), and VersityGW, an S3 server over a folder (the others). headrace: two
workers, one fetcher, eight connections, every sample drawn at random from all of them, nothing kept on disk. MosaicML
Streaming: eight workers, its uniform shuffle ("naive"), shards of 64 MiB, an empty local folder that may hold them all.
LitData: eight workers; it shuffles chunks of 64 MiB and samples within them. WebDataset: eight workers, read by curl;
it shuffles shards of 64 MiB and samples in a buffer of a thousand, which is no uniform shuffle. The clock starts before
a dataset is opened, with everything imported: the index, workers and connections are part of the first batch. One that
takes longer than 20 seconds is left there. "Training" does nothing for 20 ms after each batch: of the ideal is the
share of batches that came in the time that steps alone would have taken. Gaps are those between batches after the
first, steps included. Reading at 150 ms is measured twice, the rest once.

Bounded: data that no disk holds. Beside the above, MosaicML Streaming with its default shuffle (py1e), which follows
the shards where there are many, and with the uniform one and room for a quarter of the shards, which it fetches again
when they are needed again. Subset: every tenth sample, as a split or a filter chooses them: rows are fetched one by
one, shards whole.

The others need other versions of what headrace needs, so they have an environment of their own (`make bench-peers`).
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.clock import shared
from benchmarks.measure import Figures, Meter, disturbance, interleaved, isolated
from benchmarks.network import BATCH, SIZE, WINDOW, Reading, prepare, read
from benchmarks.proxy import Link, Proxy
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from benchmarks.streamers import LIBRARIES, OTHERWISE
from tests.services import HOME, Unavailable, versitygw

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = (PYTHON, "-P", ROOT / "benchmarks" / "streamers.py")
"""-P: this folder has modules with names of theirs."""
SAMPLES, WORKERS, SECONDS, STEP, TENFOLD = 10_000, 8, 20.0, 0.02, 10.0
TENTH = 10
FOLDER = HOME / "data" / "versitygw" / "objects" / versitygw.BUCKET / "peers"
READ, TRAIN, BOUNDED, SUBSET = "reading", "training", "bounded", "subset"
CASES = (
    *(f"{kind}, {distance} ms" for kind in (READ, TRAIN) for distance in (0, 20, 150)),
    *(f"{READ}, {distance} ms, window" for distance in (0, 20, 150)),
    *(f"{kind}, 150 ms" for kind in (BOUNDED, SUBSET)),
)


def run(report: Report, scope: Scope) -> None:
    """Start both servers, then the cases; None where they cannot be had, or nobody to compare with."""
    samples = 1000 if scope.quick else SAMPLES
    if not PYTHON.exists():
        raise LeftOut("the libraries to compare with are not there; make bench-peers installs them")
    try:
        objects = versitygw.start()
    except Unavailable as reason:
        raise LeftOut(f"no S3 server here: {reason}") from None
    try:
        written(samples, scope.say)
        with servers.node(scope.say) as port:
            isolated(partial(prepare, port, 1.0 if scope.quick else 8.0), limit=300)
            for name in shared(scope.chosen(CASES)):
                repeats = 1 if scope.quick or not name.startswith(f"{READ}, 150 ms") else 2
                case(report, name, (port, objects.ports["s3"]), samples, repeats, scope.say)
    finally:
        objects.stop()


def written(samples: int, say: Callable[[str], None]) -> None:
    """The shards, as the libraries' own writers make them, in the folder that the server serves; made once."""
    done = FOLDER / f"{samples}.done"
    if done.exists():
        return
    say(f"{samples} samples of {SIZE // 1000} kB as shards")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [*PEERS, "write", FOLDER, str(samples), str(SIZE)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    done.touch()


def case(
    report: Report, name: str, ports: tuple[int, int], samples: int, repeats: int, say: Callable[[str], None]
) -> None:
    """All contenders over one link."""
    kind, distance, *window = name.split(", ")
    link = Link(float(distance.split()[0]) / 1e3, WINDOW if window else None)
    step, every = STEP if kind == TRAIN else 0.0, TENTH if kind == SUBSET else 1
    ours = Reading(link=link, samples=samples // every, epochs=1, seconds=SECONDS, step=step)
    arms: dict[str, Callable[[], Figures]] = {
        "headrace, completion order": partial(own, ours, ports[0]),
        "headrace, sampler order": partial(own, replace(ours, in_order=True), ports[0]),
    }
    libraries = {BOUNDED: (LIBRARIES[0], *OTHERWISE), SUBSET: LIBRARIES[:1]}.get(kind, LIBRARIES)
    arms |= {library: partial(peer, library, link, step, every, ports[1]) for library in libraries}
    results = interleaved(arms, repeats=repeats, say=say, limit=120)
    columns = ["", "MB/s", "first batch s", "gap P50 ms", "gap P99 ms", "CPU s/GB", "MB sent / MB read"]
    table = Table(f"{name}: the first epoch", [*columns, *(["of the ideal %"] if step else [])])
    for library, runs in results.items():
        ideal = [100 * runs.median("rate") / (BATCH * SIZE / STEP / 1e6)] if step else []
        table.add(library, *(runs.median(key) for key in ("rate", "start", "p50", "p99", "cpu", "sent")), *ideal)
    rates = {library: runs.median("rate") for library, runs in results.items()}
    if kind != TRAIN and link.round_trip == 0.15:
        for other in (library for library in rates if library.startswith(LIBRARIES[0])):
            times = rates["headrace, completion order"] / rates[other]
            report.checks.append(Check(f"{name}: headrace over {other}", times, TENFOLD, False, "x"))
    report.add(name, table, results)
    report.notes.append(f"{name}: {disturbance(results)}")


def own(reading: Reading, port: int) -> Figures:
    """headrace's first epoch."""
    figures = read(reading, port)
    sent = figures["sent"] / sum(size for _, size in figures["coming"])
    return {**told(figures["coming"]), "cpu": figures["cpu"], "others": figures["others"], "sent": sent}


def peer(library: str, link: Link, step: float, every: int, port: int) -> Figures:
    """Another library's, in its own environment."""
    with Proxy(("127.0.0.1", port), link) as proxy:
        what = {
            "library": library,
            "endpoint": f"http://127.0.0.1:{proxy.port}",
            "key": versitygw.KEY_ID,
            "secret": versitygw.SECRET,
            "bucket": versitygw.BUCKET,
            "prefix": FOLDER.name,
            "folder": str(FOLDER),
            "batch": BATCH,
            "workers": WORKERS,
            "seconds": SECONDS,
            "step": step,
            "every": every,
        }
        command = [*PEERS, "read", json.dumps(what)]
        with Meter() as meter:
            done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
            relayed, sent = proxy.cpu, proxy.sent
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    coming = json.loads(done.stdout.splitlines()[-1])
    total = sum(size for _, size in coming)
    cpu = 1e9 * (meter.cpu - relayed) / total
    return {**told(coming), "cpu": cpu, "others": meter.others, "sent": sent / total}


def told(coming: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """MB/s from the beginning to the last batch, and how the batches came."""
    times = [moment for moment, _ in coming]
    gaps = sorted(after - before for before, after in itertools.pairwise(times[1:])) or [float("nan")]
    return {
        "rate": sum(size for _, size in coming) / (times[-1] - times[0]) / 1e6,
        "start": times[1] - times[0],
        "p50": statistics.median(gaps) * 1e3,
        "p99": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] * 1e3,
        "batches": len(coming) - 1,
    }
