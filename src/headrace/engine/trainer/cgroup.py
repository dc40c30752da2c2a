"""Limits of the control groups of this process: version 1 and 2, at any depth, the tightest of all that contain it."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNLIMITED = 1 << 60
"""Version 1 writes a huge number where there is no limit."""
RECLAIMABLE = ("inactive_file", "active_file")
"""Page cache, which the kernel gives up when memory is wanted."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller: the directories of the groups this process is in, the innermost first."""

    version: int
    groups: tuple[Path, ...]


def controller(name: str, process: Path = Path("/proc/self")) -> Controller | None:
    """The controller that governs ``name`` (cpu, memory, pids), or None. ``process``: a directory like
    ``/proc/self``.
    """
    try:
        member = _membership((process / "cgroup").read_text())
        mounts = list(_mounts((process / "mountinfo").read_text()))
    except OSError:
        return None
    for version, kind, wanted in ((1, "cgroup", name), (2, "cgroup2", "")):
        for filesystem, options, root, point in mounts:
            if wanted in member and filesystem == kind and (version == 2 or name in options):
                return Controller(version, tuple(_up(Path(point), root, member[wanted])))
    return None


def _membership(text: str) -> dict[str, str]:
    """The path of this process's group by controller; by the empty name for version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mounts(text: str) -> Iterator[tuple[str, list[str], str, str]]:
    """(file system, its options, which directory of it is mounted, where)."""
    for line in text.splitlines():
        place, _, filesystem = line.partition(" - ")
        fields, rest = place.split(), filesystem.split()
        if len(fields) > 4 and len(rest) > 2:
            yield rest[0], rest[2].split(","), _plain(fields[3]), _plain(fields[4])


def _plain(path: str) -> str:
    return path.replace("\\040", " ")  # as the kernel writes a space there


def _up(point: Path, root: str, member: str) -> Iterator[Path]:
    """The directories from a member's to the one that is mounted; only that one if the member lies elsewhere."""
    inner = PurePosixPath(os.path.normpath(member))
    if ".." not in member.split("/") and inner.is_relative_to(root):
        relative = inner.relative_to(root)
        for part in (relative, *relative.parents):
            if part != PurePosixPath():
                yield point / part
    yield point


def cores(cpu: Controller | None) -> float | None:
    """Cores' worth of time that the quotas allow; None without one. Sets of cores show in the affinity."""
    if cpu is None:
        return None
    quotas = [quota for group in cpu.groups if (quota := _quota(group, cpu.version)) is not None]
    return max(1.0, min(quotas)) if quotas else None


def _quota(group: Path, version: int) -> float | None:
    try:
        if version == 2:
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if limit == "max" or int(limit) <= 0 else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def free(memory: Controller | None) -> int | None:
    """Bytes that the groups still allow, page cache given up; None without a limit."""
    if memory is None:
        return None
    rooms = [room for group in memory.groups if (room := _room(group, memory.version)) is not None]
    return min(rooms) if rooms else None


def _room(group: Path, version: int) -> int | None:
    if version == 2:
        limits, usage, prefix = ["memory.max", "memory.high"], "memory.current", ""
    else:
        limits, usage, prefix = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
    limit = min((found for name in limits if (found := _number(group / name)) is not None), default=None)
    used = _number(group / usage)
    if limit is None or used is None:
        return None
    return max(0, limit - max(0, used - _sum(group / "memory.stat", [prefix + name for name in RECLAIMABLE])))


def processes(pids: Controller | None) -> int | None:
    """Processes and threads that the groups still allow; None without a limit. Both versions have the same files."""
    rooms: list[int] = []
    for group in () if pids is None else pids.groups:
        limit, used = _number(group / "pids.max"), _number(group / "pids.current")
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used))
    return min(rooms, default=None)


def _number(file: Path) -> int | None:
    """The number in a file; None for no limit, or when the file is not there (the root group has no limits)."""
    try:
        text = file.read_text().strip()
        return None if text == "max" or int(text) >= UNLIMITED else int(text)
    except (OSError, ValueError):
        return None


def _sum(file: Path, names: Iterable[str]) -> int:
    try:
        fields = [line.split() for line in file.read_text().splitlines()]
        return sum(int(value) for name, value in fields if name in names)
    except (OSError, ValueError):
        return 0
