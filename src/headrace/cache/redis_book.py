"""The ledger of a shared cache on a Redis server, for jobs on several hosts. One request is one function of the server.

The same facts as in ``ledger.py``, in the server's own terms: a bitmap of seen samples for each seat, the place of each
sample held, the set of all that are settled. Functions are atomic, so nothing is ever half done; what is left of a dead
rank is what it reserved, which whoever joins next gives up. Entries are kept by need.

A rank also knows itself what it was served. While the server cannot be reached it is served what it asks for, from the
store, and nothing twice; when the server is back it sits down again with what it knows.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headrace.cache import words as W
from headrace.cache.entries import Entry, Grant
from headrace.cache.ledger import Answer, Serving
from headrace.cache.redis import RedisTier
from headrace.cache.tier import Key
from headrace.cache.words import Array
from headrace.core.errors import CacheError

AHEAD = 4
"""Misses looked at for each one that is fetched."""
LOST_SEAT = b"lost"

FUNCTIONS = """
local P, op, now, silence = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local function call(...) return redis.call(...) end
local function live()
  local found = {}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    if tonumber(beats[i + 1]) > now - silence and call('HEXISTS', P .. ':ready', beats[i]) == 1 then
      found[#found + 1] = beats[i]
    end
  end
  return found
end
local function need(sample, seats)
  local count = 0
  for _, seat in ipairs(seats) do
    if call('GETBIT', P .. ':seen:' .. seat, sample) == 0 then count = count + 1 end
  end
  return count
end
local function place(sample)
  local word = call('HGET', P .. ':place', sample)
  if not word then return nil end
  local form, size, seat = string.match(word, '^(%d+) (%d+) (%-?%d+)$')
  return tonumber(form), tonumber(size), tonumber(seat)
end
local function remove(sample)
  local form, size = place(sample)
  if not form then return nil end
  call('HDEL', P .. ':place', sample)
  call('HINCRBY', P .. ':bytes', form, -size)
  call('SREM', P .. ':cached', sample)
  call('HDEL', P .. ':arriving', sample)
  for _, seat in ipairs(call('HKEYS', P .. ':beats')) do call('SREM', P .. ':used:' .. seat, sample) end
  return form
end
local function abandon(seat, into)
  local arriving = call('HGETALL', P .. ':arriving')
  for i = 1, #arriving, 2 do
    if arriving[i + 1] == seat then
      local form = remove(arriving[i])
      if form then  -- the server itself may have evicted its place
        into[#into + 1] = arriving[i]
        into[#into + 1] = form
      end
    end
  end
end
local function leave(seat)
  for _, fact in ipairs({':names', ':beats', ':ready', ':groups'}) do call('HDEL', P .. fact, seat) end
  call('UNLINK', P .. ':seen:' .. seat, P .. ':fresh:' .. seat, P .. ':used:' .. seat)
end
local function least(count, seats)
  local found = {}
  for _, sample in ipairs(call('SRANDMEMBER', P .. ':cached', count)) do
    found[#found + 1] = {need(sample, seats), sample}
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end
local function budget(form) return tonumber(call('HGET', P .. ':budget', form) or '0') end
local function held(form) return tonumber(call('HGET', P .. ':bytes', form) or '0') end

if op == 'join' then
  local name, gone = ARGV[4], {}
  local beats = call('HGETALL', P .. ':beats')
  for i = 1, #beats, 2 do
    if tonumber(beats[i + 1]) <= now - silence then
      abandon(beats[i], gone)
      leave(beats[i])
    end
  end
  for form = 1, 3 do call('HSET', P .. ':budget', form, ARGV[5 + form]) end
  for seat = 0, 61 do
    if call('HSETNX', P .. ':names', seat, name) == 1 then
      call('HSET', P .. ':beats', seat, now)
      call('HSET', P .. ':groups', seat, ARGV[5])
      return {seat, gone}
    end
  end
  return {-1, gone}
end

local seat = ARGV[4]
if call('HGET', P .. ':names', seat) ~= ARGV[5] then return 'lost' end
call('HSET', P .. ':beats', seat, now)

if op == 'begin' then
  call('SET', P .. ':seen:' .. seat, ARGV[6])
  call('UNLINK', P .. ':fresh:' .. seat)
  call('SUNIONSTORE', P .. ':fresh:' .. seat, P .. ':cached')
  call('HSET', P .. ':ready', seat, 1)
  return 1
elseif op == 'leave' then
  local gone = {}
  abandon(seat, gone)
  leave(seat)
  return gone
elseif op == 'request' or op == 'look' then
  local count, asked = tonumber(ARGV[6]), tonumber(ARGV[7])
  local seen, chosen, hits, misses, out = P .. ':seen:' .. seat, {}, 0, {}, {}
  local function serve(sample)
    local form, _, writer = place(sample)
    local able = form and writer < 0
    if able and form == 3 and call('SISMEMBER', P .. ':used:' .. seat, sample) == 1 then able = false end
    if not able then return false end
    chosen[sample] = true
    call('SETBIT', seen, sample, 1)
    call('SADD', P .. ':used:' .. seat, sample)
    call('HINCRBY', P .. ':counts', 'hits' .. form, 1)
    hits = hits + 1
    out[#out + 1] = sample
    out[#out + 1] = form
    out[#out + 1] = 0
    return true
  end
  for i = 8, 7 + asked do if hits < count then serve(ARGV[i]) end end
  while op == 'request' and hits < count do
    local fresh = call('SPOP', P .. ':fresh:' .. seat, count - hits)
    if #fresh == 0 then break end
    for _, sample in ipairs(fresh) do
      if not chosen[sample] and call('GETBIT', seen, sample) == 0 then serve(sample) end
    end
  end
  local seats = live()
  for i = 8, #ARGV do
    local sample = ARGV[i]
    if hits < count and not chosen[sample] and call('GETBIT', seen, sample) == 0 and not serve(sample) then
      chosen[sample] = true
      misses[#misses + 1] = {need(sample, seats) + (i < 8 + asked and 0.5 or 0), sample}
    end
  end
  table.sort(misses, function(a, b) return a[1] > b[1] end)
  local lacking, room = count - hits, 0
  local entries = math.max(1, call('HLEN', P .. ':place'))
  for form = 1, 3 do if held(form) * (1 + 1 / entries) < budget(form) then room = form end end
  local victims = (room == 0 and lacking > 0) and least(math.min(128, 2 * lacking), seats) or {}
  for i = 1, math.min(lacking, #misses) do
    local sample, keep = misses[i][2], room
    call('SETBIT', seen, sample, 1)
    if room == 0 and victims[i] and need(sample, seats) > victims[i][1] then keep = place(victims[i][2]) end
    out[#out + 1] = sample
    out[#out + 1] = 0
    out[#out + 1] = keep
  end
  call('HINCRBY', P .. ':counts', 'misses', math.min(lacking, #misses))
  return out
elseif op == 'reserve' then
  local sample, form, size = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
  if place(sample) or size > budget(form) then return {0} end
  local seats, out, freed = live(), {1}, 0
  local worth, over = need(sample, seats), held(form) + size - budget(form)
  local chosen = {}
  if over > 0 then
    for _, victim in ipairs(least(64, seats)) do
      local its, bytes = place(victim[2])
      if freed >= over or victim[1] >= worth then break end
      if its == form then
        chosen[#chosen + 1] = victim[2]
        freed = freed + bytes
      end
    end
    if freed < over then return {0} end
  end
  for _, victim in ipairs(chosen) do
    out[#out + 1] = victim
    out[#out + 1] = remove(victim)
  end
  call('HINCRBY', P .. ':counts', 'evicted', #chosen)
  call('HSET', P .. ':place', sample, form .. ' ' .. size .. ' ' .. seat)
  call('HSET', P .. ':arriving', sample, seat)
  call('HINCRBY', P .. ':bytes', form, size)
  return out
elseif op == 'settle' then
  local sample = ARGV[6]
  if call('HGET', P .. ':arriving', sample) ~= seat then return 0 end
  local form, size = place(sample)
  call('HDEL', P .. ':arriving', sample)
  call('HSET', P .. ':place', sample, form .. ' ' .. size .. ' -1')
  call('SADD', P .. ':cached', sample)
  for _, other in ipairs(call('HKEYS', P .. ':beats')) do
    call('SREM', P .. ':used:' .. other, sample)
    if call('GETBIT', P .. ':seen:' .. other, sample) == 0 then call('SADD', P .. ':fresh:' .. other, sample) end
  end
  if ARGV[7] == '1' then call('SADD', P .. ':used:' .. seat, sample) end
  call('HINCRBY', P .. ':counts', 'admitted', 1)
  return 1
elseif op == 'cancel' then
  if call('HGET', P .. ':arriving', ARGV[6]) == seat then remove(ARGV[6]) end
  return 1
elseif op == 'lost' then
  local form, _, writer = place(ARGV[6])
  if form and writer < 0 then
    remove(ARGV[6])
    call('HINCRBY', P .. ':counts', 'lost', 1)
  end
  return 1
end
"""


class RedisBook:
    """A rank at a ledger on a server. Used by one thread."""

    def __init__(
        self, tier: RedisTier, data: str, *, samples: int, budget: tuple[int, int, int], silence: float = 60.0
    ) -> None:
        """``data``: the fingerprint of the dataset and its stages, the same for all jobs that share it."""
        self._tier, self._samples, self._budget, self._silence = tier, samples, budget, silence
        self._function, self._prefix = tier.function(FUNCTIONS), f"{tier.prefix}:{data}"
        self._name, self._group = secrets.token_hex(8), secrets.token_hex(8)
        self._seat, self._stands_in = -1, False
        self._epoch_known = False
        self._served = np.ones(samples, bool)
        self._order: Array = np.empty(0, np.int64)
        self._rng = np.random.default_rng(secrets.randbits(64))

    def _call(self, op: str, *args: Any) -> Any:
        """What a function of the server returns; None: it cannot be reached."""
        rank = (self._name, self._group, *self._budget) if op == "join" else (self._seat, self._name)
        given = [op, int(time.time() * 1000), int(self._silence * 1000), *rank, *args]
        return self._tier.tried(lambda: self._function(keys=[self._prefix], args=given), None)

    def _sit(self) -> list[Entry]:
        """Take a seat if there is none, with what this process knows it was served; what the dead left."""
        if self._seat >= 0:
            return []
        found = self._call("join")
        if found is None:
            return []
        if found[0] < 0:
            msg = "the cache is used by 62 ranks at once, and takes no more: give this job a cache of its own"
            raise CacheError(msg)
        self._seat = int(found[0])
        if self._epoch_known and self._call("begin", np.packbits(self._served).tobytes()) is None:
            self._seat = -1
        return _entries(found[1])

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> list[Entry]:
        """See ``Seat.begin``; what must be deleted."""
        self._served[:] = members is not None
        if members is not None:
            self._served[members] = False
        self._served[np.fromiter(done, np.int64)] = True
        self._epoch_known = True
        self._order = self._rng.permutation(np.flatnonzero(~self._served))
        gone = self._sit()
        if self._seat >= 0:
            self._checked(self._call("begin", np.packbits(self._served).tobytes()))
        return gone

    def _checked(self, answer: Any) -> Any:
        """None, and no seat, if the server was not reached or took this rank for dead."""
        if answer is None or answer == LOST_SEAT:
            self._seat = -1
            return None
        return answer

    @property
    def badge(self) -> tuple[int, int]:
        """See ``Book``."""
        return self._seat, int(self._name, 16)

    def stand_in(self, badge: tuple[int, int]) -> None:
        """See ``Book``."""
        self._seat, self._name, self._stands_in = badge[0], f"{badge[1]:016x}", True

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``Seat.request``."""
        gone = self._sit()
        fresh, count = asked[~self._served[asked]], len(asked)
        others = self._candidates(AHEAD * count + 64, fresh) if exchange else fresh[:0]
        if len(fresh) + len(others) < count:
            msg = f"{count} samples were asked for, and the epoch has {len(fresh) + len(others)} left"
            raise CacheError(msg)
        found = None
        if self._seat >= 0:
            given = [count, len(fresh), *fresh.tolist(), *others.tolist()]
            found = self._checked(self._call("request" if exchange else "look", *given))
        servings = self._servings(found, count, fresh, others)
        self._served[[each.sample for each in servings]] = True
        return Answer(servings, gone, [])

    def _candidates(self, count: int, fresh: Array) -> Array:
        self._order = self._order[~self._served[self._order]] if len(self._order) < self._samples else self._order
        some = self._order[: count + len(fresh)]
        some = some[~self._served[some]]
        if len(some) < count:
            some = self._order = self._order[~self._served[self._order]]
        return some[~np.isin(some, fresh)][:count]

    def _servings(self, found: Any, count: int, fresh: Array, others: Array) -> list[Serving]:
        servings = [] if found is None else [Serving(*map(int, found[at : at + 3])) for at in range(0, len(found), 3)]
        servings = [each for each in servings if not self._served[each.sample]]
        if len(servings) < count:  # the server is away, or forgot: from the store, as asked
            taken = {each.sample for each in servings}
            rest = [int(sample) for sample in (*fresh, *others) if int(sample) not in taken]
            servings += [Serving(sample, W.NOWHERE, W.NOWHERE) for sample in rest[: count - len(servings)]]
        return servings

    def reserve(self, sample: int, form: int, size: int) -> Grant:
        """See ``Seat.reserve``."""
        found = self._checked(self._call("reserve", sample, form, size)) if self._seat >= 0 else None
        if not found or not found[0]:
            return Grant(granted=False, evicted=[])
        return Grant(granted=True, evicted=_entries(found[1:]))

    def settle(self, sample: int, *, served: bool = True) -> bool:
        """See ``Seat.settle``."""
        return self._seat >= 0 and self._checked(self._call("settle", sample, int(served))) == 1

    def cancel(self, sample: int) -> None:
        """See ``Seat.cancel``."""
        if self._seat >= 0:
            self._checked(self._call("cancel", sample))

    def lost(self, sample: int) -> None:
        """See ``Seat.lost``."""
        if self._seat >= 0:
            self._checked(self._call("lost", sample))

    def adopt(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``: on a server, entries and their ledger come and go together."""
        return []

    def useless(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``: of other datasets the server does not know who needs them; it may be told to evict."""
        return []

    def counts(self) -> dict[str, int]:
        """See ``Book``; all 0 while the server cannot be reached."""
        found = self._tier.hashes([f"{self._prefix}:counts", f"{self._prefix}:bytes"])
        counted = {name: int(found[0].get(name.encode(), 0)) for name in ("misses", "admitted", "evicted", "lost")}
        names = ("encoded", "decoded", "augmented")
        counted |= {f"hits_{name}": int(found[0].get(b"hits%d" % form, 0)) for form, name in enumerate(names, 1)}
        return counted | {f"bytes_{name}": int(found[1].get(b"%d" % form, 0)) for form, name in enumerate(names, 1)}

    def leave(self) -> list[Entry]:
        """See ``Seat.leave``."""
        found = self._checked(self._call("leave")) if self._seat >= 0 and not self._stands_in else None
        self._seat = -1
        return _entries(found or [])


def _entries(flat: Sequence[Any]) -> list[Entry]:
    return [Entry(int(flat[at]), int(flat[at + 1])) for at in range(0, len(flat), 2)]
