"""A memory cgroup for one run: a child of the group this process is in, so that no outer limit is escaped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class NoGroupError(RuntimeError):
    """This machine lets us limit no memory; the message says what is missing."""


@dataclass(frozen=True)
class Group:
    """A memory cgroup, of version 1 or 2; page cache counts in both."""

    folder: Path
    version: int

    def enter(self) -> None:
        """Move this process there; its children follow, what it has already allocated does not."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Back to where it came from, so that the group can be removed."""
        (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """Bytes, page cache included."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int((self.folder / name).read_text())

    def held(self) -> int:
        """Bytes that cannot be dropped: anonymous and shared memory."""
        stat = _table(self.folder / "memory.stat")
        return stat["rss" if self.version == 1 else "anon"] + stat["shmem"]

    def kills(self) -> int:
        """Processes that the kernel killed for memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _table(self.folder / name)["oom_kill"]


@contextmanager
def limited(name: str, size: int) -> Iterator[Group]:
    """A new group that may use `size` bytes."""
    version, parent = _own()
    folder = parent / f"{name}-{os.getpid()}"
    limit = folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")
    try:
        folder.mkdir()
    except OSError as error:
        raise NoGroupError(f"no cgroup can be made below {parent}: {error.strerror}") from None
    try:
        if not limit.exists():
            raise NoGroupError(f"the memory controller is not enabled for children of {parent}")
        limit.write_text(str(size))
        yield Group(folder, version)
    finally:
        _remove(folder)


def _own() -> tuple[int, Path]:
    """The version of the memory controller here, and the group this process is in."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            return 1, ROOT / "memory" / path.lstrip("/")
    for number, _, path in groups:
        if number == "0" and (ROOT / "cgroup.controllers").exists():
            return 2, ROOT / path.lstrip("/")
    raise NoGroupError("no memory cgroup is mounted")


def _table(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


def _remove(folder: Path) -> None:
    """A group goes once its last process is reaped, which may take a moment."""
    for attempt in range(50):
        try:
            folder.rmdir()
        except OSError:
            if attempt == 49:
                raise
            time.sleep(0.1)
        else:
            return
