"""Samples made by other hosts' CPUs: what one costs on the trainer's host, and what they add.

A Ray cluster of three nodes on this machine: ratios and CPU time count, there is no network. "CPU per sample": 4,000
samples of random numbers, made by two lanes on another node, that the fetching process brings into the arena, and this
process takes up into a row of a batch; from the first batch on, user and system time of each process. "Rates": samples
that take 5 ms, one lane here, one or three elsewhere, against one lane here alone times their number. "Killed": a lane
elsewhere is killed every two seconds.
"""

from __future__ import annotations

import os
import pickle
import select
import time
from typing import Any

import psutil
import torch

from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope

CASES = ("CPU per sample", "rates", "killed")
SIZES = {"12 KB": 12_288, "150 KB": 150_528}
AIMS = {"12 KB": 15.0, "150 KB": 45.0}
BATCH = 64
START_SECONDS = 120.0


class Ready(torch.utils.data.Dataset[Any]):
    """Samples that cost next to nothing; or wait, which takes a lane and no core."""

    def __init__(self, count: int, size: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds
        self.data = torch.zeros(size, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.data.clone(), index


def run(report: Report, scope: Scope) -> None:
    """All cases, in one cluster."""
    from tests.remote.running import SETTINGS, cluster

    os.environ |= SETTINGS
    with cluster() as running:
        for case in scope.chosen(CASES):
            scope.say(case)
            {"CPU per sample": costs, "rates": rates, "killed": killed}[case](report, scope, running)


def cpu(pid: int) -> float:
    """Seconds of a living process."""
    return time.clock_gettime((~pid << 3) | 2)


def costs(report: Report, scope: Scope, running: Any) -> None:
    """Microseconds of CPU for each sample, by process."""
    table = Table("CPU per sample", ["samples", "fetching µs", "taking up µs", "together µs"])
    for name, size in SIZES.items():
        count = 1500 if scope.quick else 4000
        fetching, taking = brought(running.address, Ready(count, size))
        table.add(name, *(1e6 * each for each in (fetching, taking, fetching + taking)))
        report.raw[name] = {"fetching": fetching, "taking": taking}
        mine = 1e6 * (fetching + taking)
        report.checks.append(Check(f"{name}, CPU for a sample on the trainer's host", mine, AIMS[name], True, "µs"))
    report.tables.append(table)


def brought(address: str, data: Ready) -> tuple[float, float]:
    """CPU seconds for a sample: of the fetching process, and of this one."""
    from headrace.core.options import Prefetch
    from headrace.fetching.fetcher import Fetcher
    from headrace.remote.elsewhere import shipped
    from headrace.remote.fetch_orders import RemoteOrders
    from headrace.remote.messages import GroupKey
    from headrace.remote.remade import Unquestioned
    from headrace.remote.rules.placement import Place

    told = pickle.dumps(shipped.packed(data, None, pickle.dumps))
    place = Place(address, {"left": 1}, {}, None)
    fetcher = Fetcher(RemoteOrders(prefetch=Prefetch(), batch=BATCH, place=place, cpus=2, bundle=told, own=0))
    make = Unquestioned(data, fetcher.arena)
    row, here, begun = torch.empty_like(data.data), [], None
    asked = taken = 0
    first = fetcher.number(len(data))
    while taken < len(data):
        while asked < len(data) and asked - taken < 8 * BATCH:
            group = range(asked, min(len(data), asked + BATCH))
            fetcher.ask({first + index: GroupKey(0, 0, index).text() for index in group}, here.append)
            asked = group.stop
        poll = select.poll()
        poll.register(*fetcher.waited_for())
        poll.poll(200)
        fetcher.pump()
        for place_of in here:
            make.place = place_of
            row.copy_(make(place_of.number - first)[0])
        fetcher.free(here)
        taken += len(here)
        here.clear()
        if begun is None and taken >= BATCH:
            begun = taken, cpu(fetcher.pid), time.process_time()
    assert begun is not None
    made = taken - begun[0]
    found = (cpu(fetcher.pid) - begun[1]) / made, (time.process_time() - begun[2]) / made
    fetcher.close()
    return found


def opened(data: Ready, **options: Any) -> Any:
    """A loader with one lane here."""
    import headrace

    return headrace.DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True, **options)


def rate(loader: Any, seconds: float, act: Any = None) -> float:
    """Samples a second, over whole epochs; each sample once in each."""
    began, many = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        seen = []
        for batch in loader:
            seen += batch[1].tolist()
            if act is not None:
                act()
        assert sorted(seen) == list(range(len(loader.dataset)))
        many += len(seen)
    return many / (time.perf_counter() - began)


def warmed(loader: Any, lanes: int) -> None:
    """Have all lanes there, and the rates known."""
    end = time.monotonic() + START_SECONDS
    while loader.stats().remote.lanes < lanes:
        rate(loader, 0.1)
        if time.monotonic() > end:
            raise RuntimeError("the lanes elsewhere do not come up")
    rate(loader, 3.0)


def rates(report: Report, scope: Scope, running: Any) -> None:
    """What lanes elsewhere add."""
    import headrace

    seconds = 5.0 if scope.quick else 15.0
    data = Ready(640, SIZES["12 KB"], 0.005)
    with opened(data) as alone:
        rate(alone, 1.0)
        single = rate(alone, seconds)
    table = Table("Samples of 5 ms: samples a second", ["lanes", "rate", "of their sum", "made elsewhere"])
    table.add("1 here", single, 1.0, 0.0)
    for lanes in (1, 3):
        with opened(data, remote=headrace.Ray(cpus=lanes, address=running.address, resources={"left": 1})) as loader:
            warmed(loader, lanes)
            before = loader.stats()
            found = rate(loader, seconds)
            after = loader.stats()
        share = (after.remote.samples - before.remote.samples) / (after.samples - before.samples)
        table.add(f"1 here, {lanes} elsewhere", found, found / single / (1 + lanes), share)
        report.raw[f"rates, {lanes}"] = {"single": single, "rate": found, "share": share}
        report.checks.append(
            Check(f"1 here and {lanes} elsewhere, of their sum", found / single / (1 + lanes), 0.9, False)
        )
    report.tables.append(table)


def killed(report: Report, scope: Scope, running: Any) -> None:
    """A lane elsewhere is killed every two seconds."""
    import headrace

    seconds = 10.0 if scope.quick else 60.0
    data = Ready(640, SIZES["12 KB"], 0.005)
    kills, last = 0, time.monotonic()

    def kill() -> None:
        nonlocal kills, last
        if time.monotonic() - last < 2.0:
            return
        found = psutil.Process(running.process.pid).children(recursive=True)
        lanes = [each for each in found if each.is_running() and each.name() == "headrace-lane"]
        if lanes:
            lanes[kills % len(lanes)].kill()
            kills += 1
        last = time.monotonic()

    with opened(data, remote=headrace.Ray(cpus=3, address=running.address, resources={"left": 1})) as loader:
        warmed(loader, 3)
        quiet = rate(loader, seconds / 2)
        disturbed = rate(loader, seconds, kill)
    table = Table("A lane elsewhere killed every two seconds", ["lanes", "quiet", "killed", "ratio", "kills"])
    table.add("1 here, 3 elsewhere", quiet, disturbed, disturbed / quiet, kills)
    report.raw["killed"] = {"quiet": quiet, "disturbed": disturbed, "kills": kills}
    report.checks.append(
        Check("a lane killed every two seconds, of the undisturbed rate", disturbed / quiet, 0.8, False)
    )
    report.tables.append(table)
