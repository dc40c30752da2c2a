"""A dataset in a cache on Redis, or on a cluster of servers: the same facts as in ``local.py``, under keys.

Words, counts and what jobs publish lie together on one server, entries on all. An entry is written with a time to live,
which it loses when it is settled, so whoever dies leaves nothing; ranks live as long as their keys do. So no clock but
the server's decides anything.
"""

import secrets
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.cache import division as D
from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import CacheTerms, Entry, RoomUse, Swapped, blocks
from headrace.cache.backends.entry_word import Array, Words
from headrace.cache.backends.redis_server import RedisServer
from headrace.cache.division import DivisionRecord, Sums
from headrace.cache.entries.entry import Bytes, Pieces

PART = 1 << 17
"""Samples whose words are in one key."""
LOG = 1 << 16
"""Samples in the log, which is a ring."""
OVERHEAD = 128
"""Bytes that a server needs for an entry, about, beside the entry."""
ASIDE, ALIVE, LONG = 60, 60, 7 * 24 * 3600
"""Seconds that an entry is kept which nobody settles, a rank counts as alive, and what jobs publish is kept."""
FIELDS = (*W.NAMES, "disk")
_WORD = struct.Struct("<Q")
_NOTHING = bytes(8)

SWAP = """
local removed, added, at, count = {}, {}, 5, tonumber(ARGV[1])
local limit, ring = tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 1, count do
  local key, offset, word = KEYS[4 + i], tonumber(ARGV[at]), ARGV[at + 1]
  local field, size = ARGV[at + 2], tonumber(ARGV[at + 3])
  at = at + 4
  if redis.call('GETRANGE', key, offset, offset + 7) == word then
    redis.call('SETRANGE', key, offset, string.rep('\\0', 8))
    redis.call('HINCRBY', KEYS[1], field, -size)
    if field ~= 'disk' then redis.call('INCRBY', KEYS[2], -size) end
    redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
    removed[#removed + 1] = i
  end
end
for i = 1, #KEYS - 4 - count do
  local key, offset, word = KEYS[4 + count + i], tonumber(ARGV[at]), ARGV[at + 1]
  local field, size = ARGV[at + 2], tonumber(ARGV[at + 3])
  local budget, sample = tonumber(ARGV[at + 4]), ARGV[at + 5]
  at = at + 6
  local there = redis.call('GETRANGE', key, offset, offset + 7)
  local held = math.max(0, tonumber(redis.call('HGET', KEYS[1], field) or 0) or 0)
  local total = math.max(0, tonumber(redis.call('GET', KEYS[2]) or 0) or 0)
  local fits = held + size <= budget and (field == 'disk' or total + size <= limit)
  if fits and (there == '' or there == string.rep('\\0', 8)) then
    redis.call('SETRANGE', key, offset, word)
    redis.call('HSET', KEYS[1], field, held + size)
    if field ~= 'disk' then redis.call('SET', KEYS[2], total + size) end
    redis.call('HINCRBY', KEYS[1], 'kept', 1)
    local place = (redis.call('INCR', KEYS[4]) - 1) % ring
    redis.call('SETRANGE', KEYS[3], 8 * place, sample)
    added[#added + 1] = i
  end
end
return {added, removed}
"""
DIVIDE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


class RemoteBackend:
    """See ``Backend``."""

    slow = True

    def __init__(self, server: RedisServer, title: str, samples: int, *, owns: bool = True) -> None:
        """``owns``: the connections are closed with this."""
        self.server, self._title, self.samples, self._owns = server, title, samples, owns
        self.where, self._base = server.where, f"{server.prefix}:{title}"
        self._room, self._total = f"{self._base}:room", f"{server.prefix}:total"
        self._swap, self._divide = server.function(SWAP), server.function(DIVIDE)
        self._ranks: set[str] = set()
        self._claims: str | None = None

    def _tried(self, act: Any, otherwise: Any) -> Any:
        return self.server.tried(act, otherwise)

    def _pipelined(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands that all go to one server."""
        with self.server.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            found: list[Any] = pipeline.execute()
        return found

    @property
    def rests(self) -> bool:
        """See ``Backend``."""
        return self.server.rests

    barred = rests

    def _place(self, sample: int) -> tuple[str, int]:
        """Key and offset of a sample's word."""
        return f"{self._base}:words:{sample // PART}", 8 * (sample % PART)

    def word(self, sample: int) -> int:
        """See ``Backend``."""
        key, at = self._place(sample)
        found: bytes = self._tried(lambda: self.server.client.getrange(key, at, at + 7), b"")
        return int.from_bytes(found[:8], "little")

    def words(self, samples: Array) -> Words:
        """See ``Backend``."""
        if not len(samples):
            return np.empty(0, np.uint64)
        if 8 * self.samples < 64 * len(samples):
            return self.block(0, self.samples)[samples]
        found, parts = np.zeros(len(samples), np.int64), samples // PART
        for part in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == part)
            gets = [word for at in (samples[chosen] % PART).tolist() for word in ("GET", "i64", f"#{at}")]
            # One command for many words: a GETRANGE for each would cost the server as many times more.
            command = ("BITFIELD_RO", f"{self._base}:words:{part}", *gets)
            found[chosen] = self._tried(lambda command=command: self._pipelined([command])[0], 0)
        return found.byteswap().view(np.uint64)  # a server counts from the highest byte

    def block(self, first: int, count: int) -> Words:
        """See ``Backend``."""
        commands, sizes = [], []
        while count:
            key, at = self._place(first)
            some = min(count, PART - at // 8)
            commands.append(("GETRANGE", key, at, at + 8 * some - 1))
            sizes.append(8 * some)
            first, count = first + some, count - some
        found = self._tried(lambda: self._pipelined(commands), [b""] * len(commands))
        whole = b"".join(part[:size].ljust(size, b"\0") for part, size in zip(found, sizes, strict=True))
        return np.frombuffer(whole, np.uint64)

    def arrivals(self, since: int) -> tuple[Array | None, int]:
        """See ``Backend``."""
        count = self._tried(lambda: int(self.server.client.get(f"{self._base}:logged") or 0), since)
        if not 0 <= since <= count or count - since > LOG // 2:
            return None, count
        if count == since:
            return np.empty(0, np.int64), count
        first, last = since % LOG, (count - 1) % LOG
        spans = [(first, last)] if first <= last else [(first, LOG - 1), (0, last)]
        commands = [("GETRANGE", f"{self._base}:log", 8 * a, 8 * b + 7) for a, b in spans]
        content = b"".join(self._tried(lambda: self._pipelined(commands), []))
        found = np.frombuffer(content[: len(content) // 8 * 8], np.int64)
        return found[(found >= 0) & (found < self.samples)], count

    def _described(self, entry: Entry) -> tuple[str, list[Any]]:
        key, at = self._place(entry.sample)
        field = FIELDS[3] if W.on_disk(entry.word) else FIELDS[max(1, W.form_of(entry.word)) - 1]
        return key, [at, _WORD.pack(entry.word), field, W.size_of(entry.word)]

    def swap(self, remove: Sequence[Entry], add: Sequence[Entry], terms: CacheTerms, *, lost: bool = False) -> Swapped:
        """See ``Backend``."""
        keys = [self._room, self._total, f"{self._base}:log", f"{self._base}:logged"]
        arguments: list[Any] = [len(remove), "lost" if lost else "evicted", terms.limit, LOG]
        for entry in remove:
            key, described = self._described(entry)
            keys.append(key)
            arguments += described
        for entry in add:
            key, described = self._described(entry)
            keys.append(key)
            arguments += [*described, terms.budget[FIELDS.index(described[2])], _WORD.pack(entry.sample)]
        added, removed = self._tried(lambda: self._swap(keys=keys, args=arguments), ([], []))
        return Swapped([remove[at - 1] for at in removed], [add[at - 1] for at in added])

    def _entry(self, entry: Entry) -> str:
        return f"{self.server.prefix.replace('{', '').replace('}', '')}:{self._title}:{entry.sample:x}-{entry.word:x}"

    def aside(self, entry: Entry, pieces: Pieces) -> "RemoteAside | None":
        """See ``Backend``."""
        client, key = self.server.client, self._entry(entry)
        written = self._tried(lambda: client.set(key, b"".join(pieces), ex=ASIDE), None)
        return RemoteAside(self.server, key) if written else None

    def read(self, entry: Entry) -> Bytes | None:
        """See ``Backend``."""
        found = self._tried(lambda: self.server.client.get(self._entry(entry)), None)
        return None if found is None else np.frombuffer(found, np.uint8).copy()

    def erase(self, entries: Sequence[Entry]) -> None:
        """See ``Backend``."""
        for entry in entries:
            key = self._entry(entry)
            self._tried(lambda key=key: self.server.client.unlink(key), 0)

    def footprint(self, size: int) -> int:
        """See ``Backend``."""
        return size + OVERHEAD

    def room(self) -> RoomUse:
        """See ``Backend``."""
        commands = [("HMGET", self._room, *FIELDS, "kept", "evicted", "lost"), ("GET", self._total)]
        counts, total = self._tried(lambda: self._pipelined(commands), ([None] * 7, 0))
        try:
            encoded, decoded, augmented, disk, kept, evicted, lost = (max(0, int(count or 0)) for count in counts)
            others = max(0, int(total or 0) - encoded - decoded - augmented)
        except (TypeError, ValueError):
            return RoomUse()
        return RoomUse((encoded, decoded, augmented, disk), others, kept, evicted, lost)

    def correct(self, by: Sequence[int]) -> None:
        """See ``Backend``; what all datasets take is added up anew."""
        client = self.server.client
        room = self.room()
        after = {field: max(0, held + more) for field, held, more in zip(FIELDS, room.held, by, strict=True)}
        counts = {"kept": room.kept, "evicted": room.evicted, "lost": room.lost}
        self._tried(lambda: client.unlink(self._room), 0)
        self._tried(lambda: client.hset(self._room, mapping={**after, **counts}), 0)
        others = self.siblings()
        total = sum(sum(each.room().held[:3]) for each in (self, *others))
        self._tried(lambda: client.set(self._total, total), None)

    def _seen(self, name: str) -> str:
        return f"{self._base}:seen:{name}"

    def saw(self, name: str, fresh: Array, mirror: Bytes) -> None:
        """See ``Backend``."""
        places = ((fresh >> 3) * 8 + 7 - (fresh & 7)).tolist()  # a server counts bits from the highest
        commands: list[tuple[Any, ...]] = []
        for first in range(0, len(places), 512):
            sets = [word for place in places[first : first + 512] for word in ("SET", "u1", place, 1)]
            commands.append(("BITFIELD", self._seen(name), *sets))
        # A command for each bit would be longer than all the bits.
        if len(places) > max(
            512, self.samples // 64
        ):  # all of it at once, beside what other ranks of the job have seen
            key, beside = self._seen(name), f"{self._seen(name)}:{secrets.token_hex(4)}"
            commands = [("SET", beside, mirror.tobytes(), "EX", ASIDE), ("BITOP", "OR", key, key, beside)]
            commands.append(("UNLINK", beside))
        self._tried(lambda: self._pipelined([*commands, ("EXPIRE", self._seen(name), LONG)]), [])

    def seen(self, names: Sequence[str], first: int, count: int) -> list[Bytes]:
        """See ``Backend``."""
        size = -(-count // 8)
        commands = [("GETRANGE", self._seen(name), first // 8, first // 8 + size - 1) for name in names]
        found = self._tried(lambda: self._pipelined(commands), [b""] * len(names)) if names else []
        return [np.frombuffer(each[:size].ljust(size, b"\0"), np.uint8) for each in found]

    def forget(self, name: str) -> None:
        """See ``Backend``."""
        self._tried(lambda: self.server.client.unlink(self._seen(name)), 0)

    def claim(self, job: str, entries: Sequence[Entry]) -> list[bool]:
        """See ``Backend``. A server that has forgotten what the job had, since it was restarted say, is not asked."""
        client, key = self.server.client, f"{self._base}:used:{job}"
        # A mark of this job's own beside its notes: where it is gone, so are they, and nothing is known.
        if self._claims is None:
            mark = secrets.token_hex(8)
            self._claims = self._tried(lambda: (client.hsetnx(key, "mark", mark), client.hget(key, "mark"))[1], None)
        samples = [entry.sample for entry in entries]
        there = self._tried(lambda: client.hmget(key, ["mark", *samples]), [None])
        if self._claims is None or there[0] != self._claims or len(there) != len(entries) + 1:
            return [False] * len(entries)
        fresh = [found != _WORD.pack(entry.word) for entry, found in zip(entries, there[1:], strict=True)]
        new = {entry.sample: _WORD.pack(entry.word) for entry, is_new in zip(entries, fresh, strict=True) if is_new}
        if not new or self._tried(lambda: (client.hset(key, mapping=new), client.expire(key, LONG)), None) is not None:
            return fresh
        return [False] * len(entries)

    def _rank(self, name: str) -> str:
        return f"{self._base}:rank:{name}"

    def report(self, name: str, record: bytes) -> None:
        """See ``Backend``."""
        self._ranks.add(name)
        commands = [
            ("SET", self._rank(name), record, "EX", ALIVE),
            ("SADD", f"{self._base}:ranks", name),
            ("SADD", f"{self.server.prefix}:datasets", f"{self._title}:{self.samples}"),
        ]
        self._tried(lambda: self._pipelined(commands), [])

    def reports(self) -> dict[str, bytes]:
        """See ``Backend``; what the dead left is cleared away."""
        client = self.server.client
        names = [
            name.decode("ascii", "replace") for name in self._tried(lambda: client.smembers(f"{self._base}:ranks"), [])
        ]
        if not names:
            return {}
        found = self._tried(lambda: client.mget([self._rank(name) for name in names]), None)
        if found is None:
            return {}
        dead = [name for name, record in zip(names, found, strict=True) if record is None]
        if dead:
            self._tried(lambda: client.srem(f"{self._base}:ranks", *dead), 0)
        return {name: record for name, record in zip(names, found, strict=True) if record is not None}

    def leave(self, name: str) -> None:
        """See ``Backend``."""
        if name in self._ranks:
            self._ranks.discard(name)
            self._tried(lambda: self.server.client.unlink(self._rank(name)), 0)

    def _division(self) -> bytes:
        found: bytes = self._tried(lambda: self.server.client.get(f"{self._base}:division"), None) or b""
        return found

    def division(self) -> DivisionRecord | None:
        """See ``Backend``."""
        content = self._division()
        return D.unpack(np.frombuffer(content, np.int64).tolist()) if len(content) == 8 * D.PACKED else None

    def divide(self, new: DivisionRecord, after: int | None) -> bool:
        """See ``Backend``."""
        # The bytes are compared on the server: who wrote between is not overwritten.
        before, now = self._division(), self.division()
        if after is not None and (now is None or now.number != after):
            return False
        packed = np.array(D.pack(new), np.int64).tobytes()
        return bool(self._tried(lambda: self._divide(keys=[f"{self._base}:division"], args=[packed, before]), 0))

    def measure(self, sums: Sums) -> bool:
        """See ``Backend``."""
        key = f"{self._base}:sums"
        commands = [("HINCRBY", key, name, value) for name, value in sums._asdict().items() if value]
        return self._tried(lambda: self._pipelined(commands), None) is not None if commands else True

    def measured(self) -> Sums:
        """See ``Backend``."""
        found = self._tried(lambda: self.server.client.hmget(f"{self._base}:sums", Sums._fields), [])
        try:
            values = [int(value or 0) for value in found]
        except ValueError:
            return Sums()
        return Sums(*values) if len(values) == len(Sums._fields) and min(values) >= 0 else Sums()

    def fade(self) -> None:
        """See ``Backend``."""
        halves = {name: value // 2 for name, value in self.measured()._asdict().items()}
        self._tried(lambda: self.server.client.hset(f"{self._base}:sums", mapping=halves), 0)

    def note_disk(self, path: str) -> None:
        """See ``Backend``."""
        self._tried(lambda: self.server.client.sadd(f"{self.server.prefix}:disks", f"{socket.gethostname()}:{path}"), 0)

    def siblings(self) -> list["RemoteBackend"]:
        """See ``Backend``."""
        return [each for each in datasets(self.server) if each._title != self._title]  # noqa: SLF001  (of this class)

    def spoil(self) -> None:
        """See ``Backend``."""
        self._tried(lambda: self.server.client.set(f"{self._base}:spoilt", 1), None)

    def spoilt(self) -> bool:
        """See ``Backend``."""
        found: int = self._tried(lambda: self.server.client.exists(f"{self._base}:spoilt"), 0)
        return bool(found)

    def remove(self) -> None:
        """See ``Backend``."""
        for first, words in blocks(self):
            self.erase([Entry(first + at, int(words[at])) for at in np.flatnonzero(words).tolist()])
        size = sum(self.room().held[:3])
        client = self.server.client
        self._tried(lambda: client.decrby(self._total, size), 0)
        self._tried(lambda: client.srem(f"{self.server.prefix}:datasets", f"{self._title}:{self.samples}"), 0)
        for key in self._tried(lambda: list(client.scan_iter(match=f"{glob(self._base)}:*", count=1000)), []):
            self._tried(lambda key=key: client.unlink(key), 0)

    def close(self) -> None:
        """See ``Backend``."""
        for name in list(self._ranks):
            self.leave(name)
        if self._owns:
            self.server.close()


class RemoteAside(NamedTuple):
    """A key that will be gone soon."""

    server: RedisServer
    key: str

    def settle(self) -> bool:
        """See ``Aside``."""
        return bool(self.server.tried(lambda: self.server.client.persist(self.key), 0))

    def drop(self) -> None:
        """See ``Aside``."""
        self.server.tried(lambda: self.server.client.unlink(self.key), 0)


def glob(text: str) -> str:
    """A pattern that matches this text alone."""
    return "".join(f"[{each}]" if each in "{}*?[]\\" else each for each in text)


def datasets(server: RedisServer) -> list[RemoteBackend]:
    """The datasets that a cache has."""
    found = []
    members: set[bytes] = server.tried(lambda: server.client.smembers(f"{server.prefix}:datasets"), set())
    for member in sorted(members):
        title, _, samples = member.decode("ascii", "replace").partition(":")
        if samples.isdigit():
            found.append(RemoteBackend(server, title, int(samples), owns=False))
    return found


def disks(server: RedisServer) -> list[str]:
    """Directories of this host that have entries of a cache."""
    known: set[bytes] = server.tried(lambda: server.client.smembers(f"{server.prefix}:disks"), set())
    named = [member.decode("utf-8", "replace").partition(":") for member in sorted(known)]
    return [path for host, _, path in named if host == socket.gethostname()]


def opened(url: str, namespace: str, title: str, samples: int) -> RemoteBackend:
    """A dataset in a cache; ``CacheError`` where it cannot be had."""
    return RemoteBackend(RedisServer(url, namespace), title, samples)
