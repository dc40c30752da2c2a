"""``redis://`` and ``rediss://``: entries on a server, or a cluster of them, that several hosts reach.

What is held is counted by functions that run on the server, so the limit holds whoever writes at once. On one server
counting and writing are one function. In a cluster an entry may lie on another server than the count: room is taken
before an entry is written and given back after it is deleted, and a place taken by somebody who died in between is
found when the entry is written next.

A server that cannot be reached has nothing and takes nothing.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.cache.redis_server import RedisServer
from headrace.cache.tier import Key, Usage, Writer

PIPELINE = 1 << 20
"""Bytes asked for at a time: more in one pipeline is slower again."""
TYPICAL = 64 << 10

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


class RedisTier:
    """A tier on a server or a cluster. ``namespace`` keeps caches on one server apart; its keys begin with ``hr:``.

    The URL has what is needed to log in, ``redis://user:password@host:port/db``; with ``rediss`` also
    ``?ssl_ca_certs=file``. Neither appears in errors, in logs or in what the object prints of itself.
    """

    def __init__(self, url: str, size: int, namespace: str = "cache") -> None:
        """Connect; ``CacheError`` says what is wrong with the URL, the server or the login."""
        self.server, self._limit = RedisServer(url, namespace), size
        self.where = self.server.where
        self._values = f"hr:{namespace}:"
        self._typical = float(TYPICAL)
        self._take, self._give = self.server.function(TAKE), self.server.function(GIVE)

    def __repr__(self) -> str:
        return f"RedisTier({self.where!r}, size={self._limit})"

    def _value(self, key: Key) -> str:
        return self._values + key.text()

    @property
    def _books(self) -> list[str]:
        return [f"{self.server.prefix}:sizes", f"{self.server.prefix}:held"]

    def reading(self) -> "RedisReading":
        """What it hands out are copies."""
        return RedisReading(self)

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        found: list[memoryview | None] = []
        while len(found) < len(keys):
            some = keys[len(found) : len(found) + max(1, int(PIPELINE / self._typical))]
            empty: list[Any] = [None] * len(some)
            values = self.server.tried(lambda some=some: self._fetched(some), empty)  # type: ignore[misc]
            sizes = [len(value) for value in values if value is not None]
            if sizes:
                self._typical += 0.25 * (sum(sizes) / len(sizes) - self._typical)
            found += [None if value is None else memoryview(value) for value in values]
        return found

    def _fetched(self, keys: Sequence[Key]) -> list[bytes | None]:
        with self.server.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.get(self._value(key))
            values: list[bytes | None] = pipeline.execute()
        return values

    def put(self, key: Key, size: int, write: Writer) -> bool:
        """See ``Tier``."""
        if size > self._limit or self.server.rests:
            return False
        entry = bytearray(size)
        write(memoryview(entry))
        return self.server.tried(lambda: self._written(key, entry), otherwise=False)

    def _written(self, key: Key, entry: bytearray) -> bool:
        asked = [key.text(), len(entry), self._limit]
        if not self.server.clustered:
            return bool(self._take(keys=[*self._books, self._value(key)], args=[*asked, bytes(entry)]) == 1)
        taken = self._take(keys=self._books, args=asked)
        if taken == 0 and not self.server.client.exists(self._value(key)):
            self._give(keys=self._books, args=[key.text()])
            taken = self._take(keys=self._books, args=asked)
        if taken != 1:
            return False
        self.server.client.set(self._value(key), bytes(entry))
        return True

    def delete(self, keys: Sequence[Key]) -> None:
        """See ``Tier``."""
        for first in range(0, len(keys), 512):
            some = keys[first : first + 512]
            self.server.tried(lambda some=some: self._deleted(some), None)  # type: ignore[misc]

    def _deleted(self, keys: Sequence[Key]) -> None:
        if not self.server.clustered:
            self._give(keys=[*self._books, *map(self._value, keys)], args=[key.text() for key in keys])
            return
        with self.server.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.unlink(self._value(key))
            pipeline.execute()
        self._give(keys=self._books, args=[key.text() for key in keys])

    def listed(self) -> Iterator[tuple[Key, int]]:
        """See ``Tier``."""
        cursor: int | None = None
        while cursor != 0:
            nothing: tuple[int, dict[bytes, bytes]] = (0, {})
            cursor, some = self.server.tried(
                lambda at=cursor or 0: self.server.client.hscan(self._books[0], at, count=1000),  # type: ignore[misc]
                nothing,
            )
            for name, size in some.items():
                yield Key.parse(name.decode()), int(size)

    def clear(self) -> None:
        """See ``Tier``."""
        self.delete([key for key, _ in self.listed()])

    def usage(self) -> Usage:
        """See ``Tier``."""
        entries = self.server.tried(lambda: int(self.server.client.hlen(self._books[0])), 0)
        held = self.server.tried(lambda: int(self.server.client.get(self._books[1]) or 0), 0)
        return Usage(entries, held, self._limit)

    def footprint(self, size: int) -> int:
        """See ``Tier``: as it is counted; what the server needs beside it is its own."""
        return size

    def close(self) -> None:
        """See ``Tier``."""
        self.server.close()


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
