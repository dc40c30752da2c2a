"""Caches in shared memory that last as long as what is measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headrace
from headrace.cache import cache_options
from headrace.cache.backends import shm


@contextmanager
def cache(size: int, **given: object) -> Iterator[headrace.Cache]:
    """An empty one; its memory goes back at the end, whatever became of those who used it."""
    made = headrace.Cache(f"shm://benchmark-{os.getpid()}", size=size, **given)  # type: ignore[arg-type]
    clear(made)
    try:
        yield made
    finally:
        clear(made)


def clear(made: headrace.Cache) -> None:
    """Forget all that is in it; nobody may be using it."""
    shm.remove(made.name)


def fill(size: int) -> None:
    """Let entries take so many bytes and no more, in this process and those it forks, whatever the memory allows."""
    cache_options.room_of = lambda _: size  # type: ignore[assignment]


def sweep(folder: Path = Path("/dev/shm")) -> None:
    """Remove what runs left that were killed because their time was up: their processes are gone."""
    for path in folder.glob("headrace-cache-*-benchmark-*"):
        pid = path.name.partition("-benchmark-")[2].partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)
