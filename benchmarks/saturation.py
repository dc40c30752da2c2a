"""What a row costs the process that fetches it, so how many a second it can fetch at most, beside its driver alone."""

from __future__ import annotations

import asyncio
import os
import random
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.measure import Figures, Meter, Runs, isolated
from benchmarks.report import Table
from headrace.core.options import Prefetch, Retry
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetcher_main import Orders
from headrace.fetching.wire import Arrived
from headrace.store import disposable
from headrace.store.base import LabelKind, Record, Schema
from headrace.store.cassandra import cassandra_driver, cql
from headrace.store.cassandra.cassandra_store import CassandraStore
from headrace.store.cassandra.url_options import options
from headrace.store.url import StoreUrl

SIZES = (1000, 10_000, 100_000)
ROWS, IN_FLIGHT = 2000, 256
SECONDS, WARM_UP = 6.0, 1000


def saturation(
    contest: Callable[..., Mapping[str, Runs]], url: Callable[[str], str], *, quick: bool
) -> tuple[Table, Mapping[str, Runs]]:
    """A table, and the figures behind it. ``url``: of a table of rows, by its name."""
    arms: dict[str, Callable[[], Figures]] = {}
    for size in SIZES:
        at = url(f"rows{size}")
        isolated(partial(write, at, size), limit=120)
        seconds = SECONDS / 6 if quick else SECONDS
        arms[f"{size // 1000} kB, fetcher"] = partial(metered, partial(fetched, at, seconds))
        arms[f"{size // 1000} kB, driver"] = partial(metered, partial(bare, at, seconds))
    results = contest(arms)
    columns = ["", "rows/s", "MB/s", "CPU us/row", "loop us/row", "ceiling rows/s", "ceiling MB/s", "MB/s per core"]
    table = Table(f"One process, {IN_FLIGHT} in flight", columns)
    for name, runs in results.items():
        size = 1000 * int(name.split()[0])
        cpu, busiest = runs.median("cpu"), runs.median("busiest")
        table.add(
            *(name, runs.median("rate"), runs.median("rate") * size / 1e6, 1e6 * cpu, 1e6 * runs.median("loop")),
            *(1 / busiest, size / busiest / 1e6, size / cpu / 1e6),
        )
    return table, results


def write(url: str, size: int) -> Figures:
    """The rows, if they are not there."""
    store, draw = CassandraStore(StoreUrl.parse(url)), random.Random(size)
    store.create(Schema())
    with store.writer() as writer:
        for first in range(0, ROWS, 200):
            writer.put([Record(f"{number:08d}", draw.randbytes(size), 0, {}) for number in range(first, first + 200)])
    store.close()
    return {}


def metered(reads: Callable[[], Figures]) -> Figures:
    """With how busy others kept the machine."""
    with Meter() as meter:
        figures = reads()
    return {**figures, "others": meter.others}


def fetched(url: str, seconds: float) -> Figures:
    """By the process that brings rows to a loader."""
    prefetch = Prefetch(window=IN_FLIGHT // 32, ramp=0)
    fetcher = Fetcher(Orders(CassandraStore(StoreUrl.parse(url)), prefetch, Retry(), 32))
    draw, here = random.Random(0), deque[Arrived]()
    poll = select.poll()
    count, asked, since = 0, 0, (0.0, 0, {0: 0.0})
    try:
        while True:
            while asked - count < 2 * IN_FLIGHT:
                first = fetcher.number(32)
                keys = {number: f"{draw.randrange(ROWS):08d}" for number in range(first, first + 32)}
                fetcher.ask(keys, here.append)
                asked += 32
            fetcher.pump()
            if here:
                fetcher.taken(here)
                fetcher.free(here)
                count += len(here)
                here.clear()
                fetcher.pump()
                if not since[1] and count > WARM_UP:
                    since = time.monotonic(), count, threads(fetcher.pid)
                elif since[1] and time.monotonic() - since[0] > seconds:
                    return _told(since, (time.monotonic(), count, threads(fetcher.pid)))
                continue
            fd, events = fetcher.waited_for()
            poll.register(fd, events)
            poll.poll(1000)
            poll.unregister(fd)
    finally:
        fetcher.close()


def bare(url: str, seconds: float) -> Figures:
    """By the driver alone, in a process that may be killed: others may not have it."""
    disposable.declare()
    return asyncio.run(_bare(StoreUrl.parse(url), seconds))


async def _bare(url: StoreUrl, seconds: float) -> Figures:
    reach, tables = options(url)
    connection = await cassandra_driver.connect(reach, cassandra_driver.Login(url.user, url.secret()), "bare")
    prepared = await connection.create_prepared(cql.read_row(tables, LabelKind.INTEGER))
    draw, count, until, warm = random.Random(0), 0, float("inf"), asyncio.Event()

    async def reads() -> None:
        nonlocal count
        while time.monotonic() < until:
            statement = prepared.bind([f"{draw.randrange(ROWS):08d}"])
            row = (await connection.execute(statement)).first()
            assert row.column_value_by_index(1)
            count += 1
            if count == WARM_UP:
                warm.set()

    tasks = [asyncio.create_task(reads()) for _ in range(IN_FLIGHT)]
    await warm.wait()
    since = time.monotonic(), count, threads(os.getpid())
    await asyncio.sleep(seconds)
    figures = _told(since, (time.monotonic(), count, threads(os.getpid())))
    until = time.monotonic()
    await asyncio.gather(*tasks)
    await connection.close()
    return figures


def threads(pid: int | None) -> dict[int, float]:
    """CPU seconds of each thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def _told(since: tuple[float, int, dict[int, float]], until: tuple[float, int, dict[int, float]]) -> Figures:
    rows = until[1] - since[1]
    used = {task: seconds - since[2].get(task, 0.0) for task, seconds in until[2].items()}
    loop = used[min(used)]  # the first thread has the loop
    return {
        "rate": rows / (until[0] - since[0]),
        "cpu": sum(used.values()) / rows,
        "loop": loop / rows,
        "busiest": max(used.values()) / rows,
    }
