"""A user's options for a cache, and the tier that they name."""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.cache.backends import local_tables
from headrace.cache.backends.backend import Backend
from headrace.cache.backends.disk import Disk
from headrace.cache.backends.shm import LEAST, checked
from headrace.cache.peers import Unit
from headrace.cache.policies import Need
from headrace.cache.share import Share

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_UNITS["ti"] = 1 << 40


def parse_size(size: int | str, what: str = "size") -> int:
    """Bytes: a number, or a text such as ``"8GiB"``, ``"500 MB"`` or ``"1.5G"``."""
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(|[kmgt]i?)b?\s*", size.lower())
        if found is not None:
            size = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        msg = f"{what} takes a positive number of bytes or a text such as '8GiB', not {size!r}"
        raise ValueError(msg)
    return size


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of samples, shared by all jobs that name it.

    ``url``: ``shm://name`` for the jobs of this host, ``redis://[user:password@]host:port`` or ``rediss://`` for those
    of several. ``size``: bytes it may hold, as a number or a text such as ``"8GiB"``; the same in every job.
    ``split``: the shares of encoded, decoded and augmented samples, three percentages that add up to 100; None: they
    are planned from what is measured, and again while jobs run. ``namespace`` keeps caches on one server apart.
    ``disk`` and ``disk_size``: a directory on a local disk that takes what memory has no room for. ``exchange``:
    whether, with other jobs there and in completion order, what is cached may come before what was drawn; a number:
    with at most so many times as many cached samples in a batch as chance would have.
    """

    url: str
    size: int | str = "8GiB"
    split: tuple[int, int, int] | None = None
    namespace: str = "cache"
    disk: str | None = None
    disk_size: int | str | None = None
    exchange: bool | float = True

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured, by name; the URL without what is secret in it."""
        url: object = self.url
        scheme = urlsplit(url).scheme if isinstance(url, str) else ""
        if scheme not in {"shm", "redis", "rediss"}:
            shown = f"{scheme}://…" if scheme else "a text without one"
            msg = f"Cache(url=...) takes shm://name, redis://host:port or rediss://host:port, not {shown}"
            raise ValueError(msg)
        if scheme == "shm":
            checked(self.name)
        elif not _readable(self.url):
            msg = (
                "Cache(url=...) takes redis://[user:password@]host[:port][/db]; characters such as / @ : # in a "
                "password are written %2F %40 %3A %23"
            )
            raise ValueError(msg)
        if self.bytes < LEAST:
            msg = f"Cache(size=...) must be at least 1 MiB, and is {self.size!r}"
            raise ValueError(msg)
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.namespace):
            msg = f"Cache(namespace=...) takes letters, digits, dots, dashes and underscores, not {self.namespace!r}"
            raise ValueError(msg)
        if self.split is not None:
            _check_split(self.split)
        if (self.disk is None) != (self.disk_size is None):
            msg = "Cache(disk=..., disk_size=...) go together"
            raise ValueError(msg)
        if self.disk_size is not None:
            parse_size(self.disk_size, "Cache(disk_size=...)")
        exchange: object = self.exchange
        if not isinstance(exchange, (bool, int, float)):
            msg = f"Cache(exchange=...) takes True, False or a number, not {self.exchange!r}"
            raise TypeError(msg)
        if not isinstance(exchange, bool) and not exchange >= 1:
            msg = f"Cache(exchange=...) takes True, False or a number from 1 on, not {self.exchange!r}"
            raise ValueError(msg)

    @property
    def most(self) -> float:
        """Times as many cached samples in a batch as chance would have that may be served."""
        return math.inf if self.exchange is True else float(self.exchange)

    @property
    def name(self) -> str:
        """The name of a cache in shared memory."""
        parts = urlsplit(self.url)
        return f"{parts.netloc}{parts.path}"

    @property
    def bytes(self) -> int:
        """``size`` as a number."""
        return parse_size(self.size, "Cache(size=...)")

    def __repr__(self) -> str:
        """The options without what is secret in the URL."""
        parts = urlsplit(self.url)
        where = f"{parts.scheme}://{self.name if parts.scheme == 'shm' else f'{parts.hostname}:{parts.port or 6379}'}"
        return f"Cache({where!r}, size={self.size!r}, split={self.split!r}, namespace={self.namespace!r})"


def _readable(url: str) -> bool:
    parts = urlsplit(url)
    try:
        return bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _check_split(split: Any) -> None:
    whole = isinstance(split, tuple) and len(split) == 3 and all(type(part) is int for part in split)
    if not whole or min(split) < 0 or sum(split) != 100:
        msg = f"Cache(split=...) takes three whole percentages that add up to 100, not {split!r}"
        raise ValueError(msg)


def title(scopes: tuple[str, str, str], samples: int) -> str:
    """The name of a dataset in every cache."""
    return hashlib.blake2b(":".join((*scopes, str(samples))).encode(), digest_size=8).hexdigest()


def room_of(options: Cache) -> int:
    """Bytes in memory that entries and tables may take."""
    return options.bytes


def open_share(options: Cache, scopes: tuple[str, str, str], samples: int, unit: Unit) -> Share:
    """A share in a cache, made if need be, for the data and stages that ``scopes`` stand for.

    ``unit``: for whom samples are made. ``CacheError`` says why it cannot be had.
    """
    name = title(scopes, samples)
    backend: Backend
    if urlsplit(options.url).scheme == "shm":
        backend = local_tables.opened(options.name, options.bytes, name, samples)
    else:
        from headrace.cache.backends import redis_tables  # noqa: PLC0415  (an optional driver)

        backend = redis_tables.opened(options.url, options.namespace, name, samples)
    disk = None
    try:
        if options.disk is not None and options.disk_size is not None:
            disk = Disk(options.disk, name, parse_size(options.disk_size))
            backend.note_disk(str(Path(options.disk).absolute()))
        return Share(backend, disk, scopes, room_of(options), unit, Need())
    except BaseException:
        backend.close()
        if disk is not None:
            disk.close()
        raise
