"""Caches seen from outside: what one holds, and the end of one."""

from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from headrace.cache import disk, shm
from headrace.cache import words as W
from headrace.cache.backend import Backend
from headrace.cache.company import Company, Unit
from headrace.cache.division import DivisionFacts, DivisionRecord
from headrace.cache.local import LocalBackend
from headrace.cache.share import START
from headrace.core.errors import CacheError

PART = 1 << 17
_NOBODY = Unit("", "")


class Overview(NamedTuple):
    """What a cache holds."""

    url: str
    """Without what is secret in it."""
    limit: int | None
    ranks: int
    """That use it now."""
    forms: dict[str, tuple[int, int]]
    """Entries and bytes of each form, and of all of them on disk."""
    facts: list[DivisionFacts]
    """Of each dataset."""


class Cleared(NamedTuple):
    """What was held, and is not any more."""

    url: str
    entries: int
    bytes: int
    """In memory, or on a server."""
    disk: int


def overview(url: str, namespace: str) -> Overview:
    """Of one cache; ``CacheError`` if there is none, or it cannot be had."""
    opened = _Opened(url, namespace)
    try:
        return opened.overview()
    finally:
        opened.close()


def clear(url: str, namespace: str) -> Cleared:
    """Empty a cache, with what it has on this host's disks; one in shared memory gives its memory back."""
    name = urlsplit(url)
    if name.scheme == "shm" and not shm.is_current(f"{name.netloc}{name.path}"):
        shm.remove(f"{name.netloc}{name.path}")
        return Cleared(url, 0, 0, 0)
    opened = _Opened(url, namespace)
    try:
        about = opened.overview()
        below = sum(disk.clear(path) for path in opened.disks())
        entries = sum(count for count, _ in about.forms.values())
        held = sum(size for name, (_, size) in about.forms.items() if name != "disk")
        opened.clear()
        return Cleared(about.url, entries, held, below)
    finally:
        opened.close()


class _Opened:
    def __init__(self, url: str, namespace: str) -> None:
        parts = urlsplit(url)
        self._name = f"{parts.netloc}{parts.path}" if parts.scheme == "shm" else None
        self.backends: list[Backend] = []
        self._limit: int | None = None
        if self._name is not None:
            self._limit, self._url = shm.size_of(self._name), url
            self._directory = shm.Directory(self._name, None)
            samples = {shm.title_of(each[shm.TITLE]): each[shm.SAMPLES] for each in self._directory.records()}
            for title in self._directory.datasets():
                self.backends.append(LocalBackend(self._directory, title, max(0, samples.get(title, 0)), owns=False))
        elif parts.scheme in {"redis", "rediss"}:
            from headrace.cache import remote  # noqa: PLC0415  (an optional driver)
            from headrace.cache.redis_server import RedisServer  # noqa: PLC0415

            self._server = RedisServer(url, namespace)
            self._url = self._server.where
            self.backends += remote.datasets(self._server)
        else:
            msg = "a cache is named shm://name, redis://host:port or rediss://host:port"
            raise CacheError(msg)

    def overview(self) -> Overview:
        forms = dict.fromkeys((*W.NAMES, "disk"), (0, 0))
        facts, ranks = [], 0
        for backend in self.backends:
            for name, (entries, size) in _held(backend).items():
                forms[name] = forms[name][0] + entries, forms[name][1] + size
            company = Company(backend, _NOBODY)
            company.look(now=True)
            ranks += len(company.ranks)
            known = [(int.from_bytes(job.encode()[:16], "big"), rank) for job, rank in company.ranks]
            division = backend.division() or DivisionRecord(0, START, fixed=False, before=START)
            facts.append(DivisionFacts(backend.samples, self._limit or 0, backend.measured(), known, division))
        return Overview(self._url, self._limit, ranks, forms, facts)

    def disks(self) -> list[str]:
        """Directories of this host."""
        if self._name is not None:
            return shm.disks(self._name)
        from headrace.cache import remote  # noqa: PLC0415  (an optional driver)

        return remote.disks(self._server)

    def clear(self) -> None:
        if self._name is not None:
            shm.remove(self._name)
            return
        for backend in self.backends:
            backend.remove()

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        if self._name is not None:
            self._directory.close()
        else:
            self._server.close()


def _held(backend: Backend) -> dict[str, tuple[int, int]]:
    """Entries and bytes, by what the table says."""
    counts, sizes = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for first in range(0, backend.samples, PART):
        words = backend.block(first, min(PART, backend.samples - first))
        words = words[words > 0]
        disk = (words >> np.uint64(2) & np.uint64(1)).astype(bool)
        sizes += W.sums(words)
        counts += np.bincount(np.where(disk, 4, W.forms(words)), minlength=5)[1:]
    return {name: (int(counts[at]), int(sizes[at])) for at, name in enumerate((*W.NAMES, "disk"))}
