"""How many workers this process may reasonably start."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from headrace.engine.consumer import cgroup

CEILING = 32
"""Beyond this many, an automatic choice is more likely to exhaust memory than to help."""


def ranks() -> int:
    """Processes of this training on this host, which share its cores and memory."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(given)) if given.isdigit() else 1


def own_cores() -> float:
    """Cores this process may use: affinity, quotas of control groups, and the other ranks on this host."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = cgroup.cores(cgroup.controller("cpu"))
    return (cores if quota is None else min(cores, quota)) / ranks()


def automatic_workers() -> int:
    """One per core this process may use."""
    return max(1, min(CEILING, int(own_cores())))


def most_lanes() -> int:
    """How far an automatic number of lanes may rise: samples that wait on I/O want more lanes than there are cores."""
    return min(2 * CEILING, 8 * automatic_workers())


def free_memory() -> int:
    """Bytes this process could still use: of the machine, within its control groups. Page cache counts as free."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    room = cgroup.free(cgroup.controller("memory"))
    return available if room is None else min(available, room)


class Use(NamedTuple):
    """What some processes did in a period."""

    share: float
    """Of the cores this process may use, 0 to 1; more where other ranks leave cores idle."""
    wanted: float
    """Cores they ran on or waited for."""

    def fullness(self, lanes: int) -> float:
        """How much of the time ``lanes`` of them had no need of anything but a core, 0 to 1.

        Where that is all the time, further ones could only take from each other, from other ranks, or from whoever else
        uses the machine, however little of it these get.
        """
        return max(self.share, self.wanted / max(lanes, own_cores()))


class CoreUse:
    """How some processes use the cores, from one question to the next."""

    def __init__(self, pids: list[int]) -> None:
        """The first period begins now."""
        self._began, self._before = time.monotonic(), _seconds(pids)

    def ask(self, pids: list[int]) -> Use:
        """About the period that ends now; the next one begins."""
        now, (ran, waited) = time.monotonic(), _seconds(pids)
        elapsed = max(1e-9, now - self._began)
        running = max(0.0, ran - self._before[0]) / elapsed
        waiting = max(0.0, waited - self._before[1]) / elapsed
        self._began, self._before = now, (ran, waited)
        return Use(running / own_cores(), running + waiting)


def _seconds(pids: list[int]) -> tuple[float, float]:
    """How long these processes have run so far, and how long they waited for a core."""
    ticks = waited = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            waited += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
        except (OSError, IndexError):  # not every kernel tells how long they waited
            continue
    return ticks / os.sysconf("SC_CLK_TCK"), waited / 1e9
