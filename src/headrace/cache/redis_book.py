"""The ledger of a shared cache on a Redis server, for jobs on several hosts. One request is one function of the server.

The same facts as in ``ledger.py``, in the server's own terms: a bitmap of seen samples for each seat, the place of each
sample held, the set of all that are settled. Functions are atomic, so nothing is ever half done; what is left of a dead
rank is what it reserved, which whoever joins next gives up. Entries are kept by need.

A rank also knows itself what it was served. While the server cannot be reached it is served what it asks for, from the
store, and nothing twice; when the server is back it sits down again with what it knows.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from headrace.cache import words as W
from headrace.cache.book import Answer, Entry, Grant, Serving
from headrace.cache.division import Division, Facts, Parts, Rank, Sums, parts_of
from headrace.cache.redis_functions import FUNCTIONS
from headrace.cache.redis_server import RedisServer
from headrace.cache.tier import Key
from headrace.cache.words import Array
from headrace.core.errors import CacheError

AHEAD = 4
"""Misses looked at for each one that is fetched."""
LOST_SEAT = b"lost"


def described(server: RedisServer) -> list[Facts]:
    """What is known of each dataset that a cache on a server serves."""
    found = []
    for name in server.names(f"{server.prefix}:*:division"):
        (known,) = server.hashes([name])
        samples, data = int(known.get(b"samples", 0)), name.split(":")[-2]
        found.append(RedisBook(server, data, samples=samples, budget=(0, 0, 0)).facts())
    return found


class RedisBook:
    """A rank at a ledger on a server. Used by one thread."""

    def __init__(
        self,
        server: RedisServer,
        data: str,
        *,
        samples: int,
        budget: Parts,
        group: int | None = None,
        silence: float = 60.0,
    ) -> None:
        """``data``: the fingerprint of the dataset and its stages, the same for all jobs that share it.

        ``budget``: bytes for encoded, decoded and augmented entries, if nobody kept this ledger before. ``group``: a
        number that all ranks of a job have in common; None: it has one.
        """
        self._server, self._samples, self._budget, self._silence = server, samples, budget, silence
        self._function, self._prefix = server.function(FUNCTIONS), f"{server.prefix}:{data}"
        self._name, self._group = secrets.token_hex(8), f"{group or secrets.randbits(61) + 1:016x}"
        self._seat, self._stands_in = -1, False
        self._sat = self._epoch_known = False
        self._wish: tuple[Parts | None, int] | None = None
        self._served = np.ones(samples, bool)
        self._order: Array = np.empty(0, np.int64)
        self._rng = np.random.default_rng(secrets.randbits(64))

    def _call(self, op: str, *args: Any) -> Any:
        """What a function of the server returns; None: it cannot be reached."""
        given = [op, int(time.time() * 1000), int(self._silence * 1000), self._seat, self._name, *args]
        return self._server.tried(lambda: self._function(keys=[self._prefix], args=given), None)

    def _sit(self) -> list[Entry]:
        """Take a seat if there is none, with what this process knows it was served; what the dead left."""
        if self._seat >= 0:
            return []
        found = self._call("join", self._group, *self._budget, int(self._sat))
        if found is None:
            return []
        if found[0] < 0:
            msg = "the cache is used by 62 ranks at once, and takes no more: give this job a cache of its own"
            raise CacheError(msg)
        self._seat, self._sat = int(found[0]), True
        if self._wish is not None:  # again: the server may have forgotten it
            self.agree(*self._wish)
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
        servings = self._servings(None if found is None else found[0], count, fresh, others)
        self._served[[each.sample for each in servings]] = True
        return Answer(servings, gone if found is None else [*gone, *_entries(found[1])], [])

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
        found = self._checked(self._call("reserve", sample, form, size, os.getpid())) if self._seat >= 0 else None
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

    def lost(self, sample: int, form: int) -> None:
        """See ``Seat.lost``."""
        if self._seat >= 0:
            self._checked(self._call("lost", sample, form))

    def bury(self, lives: Callable[[int], bool]) -> list[Entry]:
        """See ``Book``."""
        writing = self._checked(self._call("writing")) if self._seat >= 0 else None
        gone = [sample for sample, process in _pairs(writing or []) if not lives(process)]
        found = self._checked(self._call("bury", *gone)) if gone else None
        return _entries(found or [])

    def agree(self, parts: Parts | None, room: int) -> None:
        """See ``Book``."""
        self._wish = parts, room
        self._call("agree", *(parts or parts_of(self._budget)), room, int(parts is not None), self._samples)

    def measure(self, sums: Sums) -> None:
        """See ``Book``."""
        if self._seat >= 0:
            self._checked(self._call("measure", *sums))

    def report(self, rank: Rank) -> None:
        """See ``Book``."""
        if self._seat >= 0:
            self._checked(self._call("report", " ".join(map(str, rank.words()))))

    def facts(self) -> Facts:
        """See ``Book``; without ranks while the server cannot be reached."""
        divided, measured, ranks = self._call("facts") or ([0] * 12, [], [])
        number, *parts, fixed, before0, before1, before2, promised, promised_before, limit, room = divided
        sums = [0] * len(Sums._fields)
        for at, value in _pairs(measured):
            sums[at] = value
        groups = [(int(ranks[at], 16), Rank.of([*map(int, ranks[at + 1].split())])) for at in range(0, len(ranks), 2)]
        before = before0, before1, before2
        now = Division(number, tuple(parts), bool(fixed), before, promised, promised_before, limit)
        return Facts(self._samples, room, Sums(*sums), groups, now)

    def divide(self, new: Division) -> bool:
        """See ``Book``."""
        number, parts, fixed, before, *rest = new
        return bool(self._call("divide", number, *parts, int(fixed), *before, *rest) == 1)

    def adopt(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``: on a server, entries and their ledger come and go together."""
        return []

    def useless(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``: of other datasets the server does not know who needs them; it may be told to evict."""
        return []

    def counts(self) -> dict[str, int]:
        """See ``Book``; all 0 while the server cannot be reached."""
        found = self._server.hashes([f"{self._prefix}:counts", f"{self._prefix}:bytes"])
        counted = {name: int(found[0].get(name.encode(), 0)) for name in ("misses", "admitted", "evicted", "lost")}
        names = ("encoded", "decoded", "augmented")
        counted |= {f"hits_{name}": int(found[0].get(b"hits%d" % form, 0)) for form, name in enumerate(names, 1)}
        return counted | {f"bytes_{name}": int(found[1].get(b"%d" % form, 0)) for form, name in enumerate(names, 1)}

    def leave(self) -> list[Entry]:
        """See ``Seat.leave``."""
        found = self._checked(self._call("leave")) if self._seat >= 0 and not self._stands_in else None
        self._seat = -1
        return _entries(found or [])


def _pairs(flat: Sequence[Any]) -> list[tuple[int, int]]:
    return [(int(flat[at]), int(flat[at + 1])) for at in range(0, len(flat), 2)]


def _entries(flat: Sequence[Any]) -> list[Entry]:
    return [Entry(*pair) for pair in _pairs(flat)]
