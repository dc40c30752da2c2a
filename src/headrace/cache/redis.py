"""``redis://`` and ``rediss://``: entries on a server, or a cluster of them, that several hosts reach.

What is held is counted by functions that run on the server, so the limit holds whoever writes at once. On one server
counting and writing are one function. In a cluster an entry may lie on another server than the count: room is taken
before an entry is written and given back after it is deleted, and a place taken by somebody who died in between is
found when the entry is written next.

A server that cannot be reached has nothing and takes nothing; it is tried again after a while.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from headrace.cache.tier import Key, Usage, Writer
from headrace.core.errors import CacheError

log = logging.getLogger("headrace.cache")

PIPELINE = 1 << 20
"""Bytes asked for at a time: more in one pipeline is slower again."""
TYPICAL = 64 << 10
RETRY = 2.0
"""Seconds during which a server that could not be reached is left alone."""
CONNECT, REPLY = 3.0, 10.0
"""Seconds to wait for a connection, and for a reply."""

TAKE = """
local size, held = tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[2]) or '0')
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before then
  if KEYS[3] == nil or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
  held = held - tonumber(before)
end
if held + size > tonumber(ARGV[3]) then
  if before then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('SET', KEYS[2], held)
  end
  return -1
end
redis.call('HSET', KEYS[1], ARGV[1], size)
redis.call('SET', KEYS[2], held + size)
if KEYS[3] ~= nil then redis.call('SET', KEYS[3], ARGV[4]) end
return 1
"""
GIVE = """
local given = 0
for at, name in ipairs(ARGV) do
  local size = redis.call('HGET', KEYS[1], name)
  if size then
    redis.call('HDEL', KEYS[1], name)
    redis.call('DECRBY', KEYS[2], size)
    given = given + 1
  end
  if KEYS[at + 2] ~= nil then redis.call('UNLINK', KEYS[at + 2]) end
end
return given
"""
_T = TypeVar("_T")


class RedisTier:
    """A tier on a server or a cluster. ``namespace`` keeps caches on one server apart; its keys begin with ``hr:``.

    The URL has what is needed to log in, ``redis://user:password@host:port/db``; with ``rediss`` also
    ``?ssl_ca_certs=file``. Neither appears in errors, in logs or in what the object prints of itself.
    """

    def __init__(self, url: str, size: int, namespace: str = "cache") -> None:
        """Connect; ``CacheError`` says what is wrong with the URL, the server or the login."""
        self._driver = _driver()
        self.where, self._limit = _shown(url), size
        self._prefix = f"hr:{{{namespace}}}"
        self._values = f"hr:{namespace}:"
        self._down_until, self._typical = 0.0, float(TYPICAL)
        try:
            self._client, self._cluster = self._connect(url)
            self._take = self._client.register_script(TAKE)
            self._give = self._client.register_script(GIVE)
        except (self._driver.exceptions.RedisError, OSError, TypeError) as error:  # the last for a wrong option
            msg = f"the cache {self.where} cannot be used: {_said(error)}"
            raise CacheError(msg) from None

    def _connect(self, url: str) -> tuple[Any, bool]:
        options: dict[str, Any] = {"socket_connect_timeout": CONNECT, "socket_timeout": REPLY}
        client = self._driver.Redis.from_url(url, **options)
        try:
            cluster = bool(client.info("cluster").get("cluster_enabled"))
        except BaseException:
            client.close()
            raise
        if not cluster:
            return client, False
        client.close()
        return self._driver.cluster.RedisCluster.from_url(url, **options), True

    def __repr__(self) -> str:
        return f"RedisTier({self.where!r}, size={self._limit})"

    def _value(self, key: Key) -> str:
        return self._values + key.text()

    @property
    def _books(self) -> list[str]:
        return [f"{self._prefix}:sizes", f"{self._prefix}:held"]

    @property
    def prefix(self) -> str:
        """How all keys begin that lie together on one server."""
        return self._prefix

    def function(self, text: str) -> Callable[..., Any]:
        """A function to run on the server, with ``keys`` and ``args``."""
        found: Callable[..., Any] = self._client.register_script(text)
        return found

    def tried(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """What ``act`` gives, or ``otherwise`` if the server cannot be reached; then it is left alone for a while."""
        if time.monotonic() < self._down_until:
            return otherwise
        try:
            return act()
        except (self._driver.exceptions.RedisError, OSError) as error:
            if not isinstance(error, self._driver.exceptions.ResponseError):
                self._down_until = time.monotonic() + RETRY
            log.warning("the cache %s: %s; going on without it", self.where, _said(error))
            return otherwise

    def hashes(self, keys: Sequence[str]) -> list[dict[bytes, bytes]]:
        """What the hashes of these names hold; nothing while the server cannot be reached."""
        return self.tried(lambda: [self._client.hgetall(key) for key in keys], [{} for _ in keys])

    def names(self, pattern: str) -> list[str]:
        """The keys that match."""
        return self.tried(lambda: sorted(key.decode() for key in self._client.scan_iter(match=pattern)), [])

    def reading(self) -> "RedisReading":
        """What it hands out are copies."""
        return RedisReading(self)

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        found: list[memoryview | None] = []
        while len(found) < len(keys):
            some = keys[len(found) : len(found) + max(1, int(PIPELINE / self._typical))]
            empty: list[Any] = [None] * len(some)
            values = self.tried(lambda some=some: self._fetched(some), empty)  # type: ignore[misc]
            sizes = [len(value) for value in values if value is not None]
            if sizes:
                self._typical += 0.25 * (sum(sizes) / len(sizes) - self._typical)
            found += [None if value is None else memoryview(value) for value in values]
        return found

    def _fetched(self, keys: Sequence[Key]) -> list[bytes | None]:
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.get(self._value(key))
            values: list[bytes | None] = pipeline.execute()
        return values

    def put(self, key: Key, size: int, write: Writer) -> bool:
        """See ``Tier``."""
        if size > self._limit or time.monotonic() < self._down_until:
            return False
        entry = bytearray(size)
        write(memoryview(entry))
        return self.tried(lambda: self._written(key, entry), otherwise=False)

    def _written(self, key: Key, entry: bytearray) -> bool:
        asked = [key.text(), len(entry), self._limit]
        if not self._cluster:
            return bool(self._take(keys=[*self._books, self._value(key)], args=[*asked, bytes(entry)]) == 1)
        taken = self._take(keys=self._books, args=asked)
        if taken == 0 and not self._client.exists(self._value(key)):
            self._give(keys=self._books, args=[key.text()])
            taken = self._take(keys=self._books, args=asked)
        if taken != 1:
            return False
        self._client.set(self._value(key), bytes(entry))
        return True

    def delete(self, keys: Sequence[Key]) -> None:
        """See ``Tier``."""
        for first in range(0, len(keys), 512):
            some = keys[first : first + 512]
            self.tried(lambda some=some: self._deleted(some), None)  # type: ignore[misc]

    def _deleted(self, keys: Sequence[Key]) -> None:
        if not self._cluster:
            self._give(keys=[*self._books, *map(self._value, keys)], args=[key.text() for key in keys])
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.unlink(self._value(key))
            pipeline.execute()
        self._give(keys=self._books, args=[key.text() for key in keys])

    def listed(self) -> Iterator[tuple[Key, int]]:
        """See ``Tier``."""
        cursor: int | None = None
        while cursor != 0:
            nothing: tuple[int, dict[bytes, bytes]] = (0, {})
            cursor, some = self.tried(
                lambda at=cursor or 0: self._client.hscan(self._books[0], at, count=1000),  # type: ignore[misc]
                nothing,
            )
            for name, size in some.items():
                yield Key.parse(name.decode()), int(size)

    def clear(self) -> None:
        """See ``Tier``."""
        self.delete([key for key, _ in self.listed()])

    def usage(self) -> Usage:
        """See ``Tier``."""
        entries = self.tried(lambda: int(self._client.hlen(self._books[0])), 0)
        held = self.tried(lambda: int(self._client.get(self._books[1]) or 0), 0)
        return Usage(entries, held, self._limit)

    def footprint(self, size: int) -> int:
        """See ``Tier``: as it is counted; what the server needs beside it is its own."""
        return size

    def close(self) -> None:
        """See ``Tier``."""
        self._client.close()
        if self._cluster:  # which keeps the connections to its servers, old and new
            known = self._client.nodes_manager
            for node in [*known.nodes_cache.values(), *known.startup_nodes.values()]:
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect()


class RedisReading:
    """Views of copies, which stay as long as somebody has them."""

    def __init__(self, tier: RedisTier) -> None:
        """Of that tier."""
        self._tier = tier

    def __enter__(self) -> Self:
        return self

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        return self._tier.get(keys)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to give back."""


def _driver() -> Any:
    try:
        import redis  # noqa: PLC0415  (optional)
        import redis.cluster  # noqa: PLC0415
    except ImportError:
        msg = "a cache on Redis needs its driver: pip install 'headrace[redis]'"
        raise CacheError(msg) from None
    return redis


def _shown(url: str) -> str:
    """The URL without what is secret."""
    parts = urlsplit(url)
    try:
        port = parts.port or 6379
    except ValueError:  # which would repeat a part of a password that was not written as it must be
        port = 0
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname or not port:
        msg = (
            "the URL of a cache on Redis is redis://[user:password@]host[:port][/db], or rediss:// for TLS; characters "
            "such as / @ : # in a password are written %2F %40 %3A %23"
        )
        raise CacheError(msg)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _said(error: BaseException) -> str:
    """An error without addresses of the driver's own objects; servers never repeat a password."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
