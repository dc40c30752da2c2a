"""How many workers this process may reasonably start."""

import os
import time
from pathlib import Path

CEILING = 32
"""Beyond this many, an automatic choice is more likely to exhaust memory than to help."""


def automatic_workers() -> int:
    """One per core this process may use: affinity, cgroup quota, and the other ranks on this host."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None:
        cores = min(cores, quota)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(CEILING, int(cores / max(1, int(ranks) if ranks.isdigit() else 1))))


def most_lanes() -> int:
    """How far an automatic number of lanes may rise: samples that wait on I/O want more lanes than there are cores."""
    return min(2 * CEILING, 8 * automatic_workers())


def _quota(file: Path) -> float | None:
    try:
        limit, period = file.read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(1.0, int(limit) / int(period))


def free_memory() -> int:
    """Bytes this process could still use: of the machine, within its cgroup."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


class CoreUse:
    """How much of the cores this process may use some processes use, from one question to the next."""

    def __init__(self, pids: list[int]) -> None:
        """The first period begins now."""
        self._began, self._used = time.monotonic(), _cpu_seconds(pids)

    def share(self, pids: list[int]) -> float:
        """Of the period that ends now, 0 to 1; the next one begins."""
        now, used = time.monotonic(), _cpu_seconds(pids)
        share = max(0.0, used - self._used) / (max(1e-9, now - self._began) * len(os.sched_getaffinity(0)))
        self._began, self._used = now, used
        return share


def _cpu_seconds(pids: list[int]) -> float:
    """What these processes have used so far; one that is gone counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
