"""The number of workers that this process may reasonably start."""

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from headrace.core import launchers
from headrace.core.procfs import stat_of
from headrace.engine.trainer import cgroup

CEILING = 32
"""Beyond this many, an automatic choice is more likely to exhaust memory than to help, until it was seen to."""
MOST = 128
"""Lanes that are ever tried: address space is reserved for their batches."""


def ranks() -> int:
    """Processes of this training on this host, which share its cores and memory."""
    return launchers.local_ranks(os.environ)


def own_cores() -> float:
    """Cores this process may use: affinity, quotas of control groups, and the other ranks on this host."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = cgroup.cores(cgroup.controller("cpu"))
    return launchers.cores(os.environ, cores if quota is None else min(cores, quota))


def automatic_workers() -> int:
    """The automatic number of workers: one per core this process may use, ``CEILING`` at most."""
    return max(1, min(CEILING, int(own_cores())))


def most_lanes() -> int:
    """The limit to which an automatic number of lanes may rise where it pays: samples that wait for a network need
    no cores.

    What memory and other limits allow is asked when lanes are added. Ranks share what there is.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return min(MOST, 8 * automatic_workers())  # address space for every lane's batches is taken at the beginning
    return min(MOST, max(8 * automatic_workers(), MOST // ranks()))


def free_memory() -> int:
    """Bytes this process could still use: of the machine, within its control groups. Page cache counts as free."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    room = cgroup.free(cgroup.controller("memory"))
    return available if room is None else min(available, room)


def memory_for_batches() -> int:
    """Bytes that a loader's batches may take by default: a rank's part of a quarter of what is free."""
    return free_memory() // (4 * ranks())


def free_descriptors() -> int:
    """Files that this process may still open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft - len(os.listdir("/proc/self/fd")))  # noqa: PTH208  (names are enough)


def free_processes() -> int:
    """Processes that the control groups still allow; a huge number where they say nothing.

    What ``ulimit -u`` allows is not known without counting every thread of the user: whoever starts one finds out.
    """
    room = cgroup.processes(cgroup.controller("pids"))
    return cgroup.UNLIMITED if room is None else room


def machine() -> tuple[float, int]:
    """Core seconds that this machine was busy so far, what its host took from it included, and its cores."""
    first, *others = Path("/proc/stat").read_text().splitlines()
    user, nice, system, _, _, interrupt, soft, steal, *_ = (int(ticks) for ticks in first.split()[1:])
    # Waiting for a disk leaves a core free, and what guests took is part of user and nice already.
    busy = (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")
    return busy, sum(line.startswith("cpu") for line in others)


class Use(NamedTuple):
    """The use that some processes made of the cores in a period."""

    seconds: float
    running: float
    """Core seconds that they ran."""
    queued: float
    """Core seconds that they waited for one."""


class CoreUse:
    """The use that some processes make of the cores, from one question to the next."""

    def __init__(self, pids: list[int]) -> None:
        self._began, self._before = time.monotonic(), _seconds(pids)

    def ask(self, pids: list[int]) -> Use:
        """The use in the period that ends now; the next one begins."""
        now, (ran, waited) = time.monotonic(), _seconds(pids)
        elapsed = max(1e-9, now - self._began)
        use = Use(elapsed, max(0.0, ran - self._before[0]), max(0.0, waited - self._before[1]))
        self._began, self._before = now, (ran, waited)
        return use


def _seconds(pids: list[int]) -> tuple[float, float]:
    """The time that these processes have run so far, and the time that they waited for a core."""
    ran = waited = 0.0
    tick = 1 / os.sysconf("SC_CLK_TCK")
    for pid in pids:
        try:
            fields = stat_of(pid)
            ticks = tick * (int(fields[11]) + int(fields[12]))
            # Of all threads in coarse steps, and of the first one exactly; not every kernel tells the latter.
            own, queued, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
            ran += max(ticks, int(own) / 1e9)
            waited += int(queued) / 1e9
        except (OSError, IndexError, ValueError):
            continue
    return ran, waited
