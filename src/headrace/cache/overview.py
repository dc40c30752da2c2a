"""Caches seen from outside: what one holds, and the end of one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from headrace.cache.backends import disk, local_tables, shm
from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Backend, blocks
from headrace.cache.division import DivisionFacts, DivisionRecord
from headrace.cache.peers import Peers, Unit
from headrace.cache.share import START
from headrace.core.errors import CacheError

_NOBODY = Unit("", "")


class Overview(NamedTuple):
    """The contents of a cache, in numbers."""

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
    """The amounts that were held, and are not any more."""

    url: str
    entries: int
    bytes: int
    """In memory, or on a server."""
    disk: int


def overview(url: str, namespace: str) -> Overview:
    """The overview of one cache; ``CacheError`` if there is none, or it cannot be had."""
    with _opened(url, namespace) as cache:
        return _seen(cache)


def clear(url: str, namespace: str) -> Cleared:
    """Empty a cache, with what it has on this host's disks; one in shared memory gives its memory back."""
    name = urlsplit(url)
    if name.scheme == "shm" and not shm.is_current(f"{name.netloc}{name.path}"):
        shm.remove(f"{name.netloc}{name.path}")
        return Cleared(url, 0, 0, 0)
    with _opened(url, namespace) as cache:
        about = _seen(cache)
        below = sum(disk.clear(path) for path in cache.disks)
        entries = sum(count for count, _ in about.forms.values())
        held = sum(size for name, (_, size) in about.forms.items() if name != "disk")
        cache.clear()
        return Cleared(about.url, entries, held, below)


class _Opened(NamedTuple):
    url: str
    limit: int | None
    backends: Sequence[Backend]
    disks: list[str]
    """Directories of this host."""
    clear: Callable[[], None]


@contextmanager
def _opened(url: str, namespace: str) -> Iterator[_Opened]:
    parts = urlsplit(url)
    with ExitStack() as stack:
        if parts.scheme == "shm":
            name = f"{parts.netloc}{parts.path}"
            limit, directory = shm.size_of(name), stack.enter_context(closing(shm.Directory(name, None)))
            cache = _Opened(url, limit, local_tables.datasets(directory), shm.disks(name), lambda: shm.remove(name))
        elif parts.scheme in {"redis", "rediss"}:
            from headrace.cache.backends import redis_server, redis_tables  # noqa: PLC0415  (an optional driver)

            server = stack.enter_context(closing(redis_server.RedisServer(url, namespace)))
            there = redis_tables.datasets(server)
            cache = _Opened(server.where, None, there, redis_tables.disks(server), partial(_remove, there))
        else:
            msg = "a cache is named shm://name, redis://host:port or rediss://host:port"
            raise CacheError(msg)
        for backend in cache.backends:
            stack.callback(backend.close)
        yield cache


def _remove(backends: Sequence[Backend]) -> None:
    for backend in backends:
        backend.remove()


def _seen(cache: _Opened) -> Overview:
    forms = dict.fromkeys((*W.NAMES, "disk"), (0, 0))
    facts, ranks = [], 0
    for backend in cache.backends:
        for name, (entries, size) in _held(backend).items():
            forms[name] = forms[name][0] + entries, forms[name][1] + size
        peers = Peers(backend, _NOBODY)
        peers.look(now=True)
        ranks += len(peers.ranks)
        division = backend.division() or DivisionRecord(0, START, fixed=False, before=START)
        facts.append(DivisionFacts(backend.samples, cache.limit or 0, backend.measured(), peers.ranks, division))
    return Overview(cache.url, cache.limit, ranks, forms, facts)


def _held(backend: Backend) -> dict[str, tuple[int, int]]:
    """Entries and bytes, by what the table says."""
    counts, sizes = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for _, words in blocks(backend):
        sizes += W.sums(words)
        counts += np.bincount(W.kinds(words), minlength=5)[1:]
    return {name: (int(counts[at]), int(sizes[at])) for at, name in enumerate((*W.NAMES, "disk"))}
