"""What a seat is served next, from hints that its own process keeps, so that no request has to look at every sample.

Each candidate is checked against the ledger when it is chosen; a wrong hint costs a look. A seat's unseen samples only
become fewer within an epoch, so one random order of them serves for all of it.
"""

import random

import numpy as np

from headrace.cache import words as W
from headrace.cache.entries import Entries
from headrace.cache.roster import Crowd
from headrace.cache.words import Array
from headrace.core.errors import CacheError

AHEAD = 8
"""Misses looked at for each one that is fetched."""


class Candidates:
    """Belongs to one seat of one process."""

    def __init__(self, entries: Entries, seat: int, rng: random.Random) -> None:
        """Nothing known yet."""
        self._entries, self._bit, self._rng = entries, 1 << seat, rng
        self.kin = self._bit
        """A bit for each seat of this job's ranks."""
        self._logged = -W.LOG - 1
        self._pool: list[int] = []
        self._order = self._front = np.empty(0, np.int64)
        self._at = 0

    def restart(self) -> None:
        """An epoch begins: everything is to be looked at again."""
        self._logged, self._pool = -W.LOG - 1, []
        self._order = self._front = np.empty(0, np.int64)
        self._at = 0

    def chosen(self, asked: Array, crowd: Crowd, *, exchange: bool) -> tuple[list[int], list[int]]:
        """As many hits and misses as were ``asked`` for; with ``exchange``, others may be chosen in their place."""
        fresh = self._unseen(asked)
        able = self._servable(fresh)
        if not exchange:
            if len(fresh) < len(asked):
                msg = "samples were asked for that this rank has seen in this epoch, or does not take part in"
                raise CacheError(msg)
            return fresh[able].tolist(), fresh[~able].tolist()
        hits: list[int] = fresh[able].tolist()
        misses: list[int] = fresh[~able].tolist() if crowd.jobs < 2 and not self._entries.policy.alone else []
        chosen = {*hits, *misses}
        hits += self._hits(len(asked) - len(chosen), chosen)
        lacking = len(asked) - len(hits) - len(misses)
        if not lacking:
            return hits, misses
        misses += self._misses(lacking, fresh[~able], chosen, crowd)
        if len(hits) + len(misses) < len(asked):
            msg = f"{len(asked)} samples were asked for, and the epoch has {len(hits) + len(misses)} left"
            raise CacheError(msg)
        return hits, misses

    def _unseen(self, samples: Array) -> Array:
        """Those that the seat has yet to see in this epoch."""
        unseen: Array = samples[(self._entries.seen[samples] & self._bit) == 0]
        return unseen

    def _servable(self, samples: Array) -> Array:
        """Which of them can be served from the cache: settled, and not an augmentation this job already had."""
        place = self._entries.place[samples]
        form = place & W.FORM
        stale = (form == W.AUGMENTED) & ((self._entries.used[samples] & self.kin) != 0)
        found: Array = (form != 0) & ((place & W.ARRIVING) == 0) & ~stale
        return found

    def _hits(self, count: int, chosen: set[int]) -> list[int]:
        """Up to ``count`` cached samples that this seat has not seen, at random; not those chosen already."""
        self._catch_up()
        found: list[int] = []
        pool = self._pool
        while pool and len(found) < count:
            size = min(len(pool), 2 * (count - len(found)) + 16)
            for at in range(len(pool) - size, len(pool)):  # a random choice of the pool, moved to its end
                other = self._rng.randrange(at + 1)
                pool[at], pool[other] = pool[other], pool[at]
            some = np.array(pool[-size:], np.int64)
            fresh = (self._entries.seen[some] & self._bit) == 0
            able = self._servable(some)
            kept = []
            for sample, is_fresh, is_able in zip(some.tolist(), fresh.tolist(), able.tolist(), strict=True):
                if not is_fresh or not is_able or sample in chosen:
                    continue  # seen, or gone: if it comes back the log will say so
                if len(found) < count:
                    found.append(sample)
                    chosen.add(sample)
                else:
                    kept.append(sample)
            del pool[-size:]
            pool.extend(kept)
        return found

    def _catch_up(self) -> None:
        logged = int(self._entries.r[W.LOGGED])
        behind = logged - self._logged
        if behind > W.LOG:
            samples = self._entries.cached()
        else:
            first = self._entries.dims.log
            samples = self._entries.r[first + np.arange(self._logged, logged) % W.LOG]
        self._logged = logged
        fresh = self._unseen(samples)
        self._pool = fresh.tolist() if behind > W.LOG else [*self._pool, *fresh.tolist()]

    def _misses(self, count: int, asked: Array, chosen: set[int], crowd: Crowd) -> list[int]:
        """``count`` unseen samples that the cache cannot serve, the most urgent of those looked at, those asked first.

        Fewer only when the epoch has no more.
        """
        wide = AHEAD * count + 64
        if len(self._front) < wide:
            until = self._at + wide - len(self._front)
            self._front = np.concatenate([self._front, self._order[self._at : until]])
            self._at = min(until, len(self._order))
        self._front = self._unseen(self._front)
        some = self._choosable(np.unique(np.concatenate([asked, self._front])), chosen)
        if len(some) < count:
            self._order = self._shuffled(self._unseen(np.arange(self._entries.dims.samples)))
            self._front, self._at = self._order[:wide], min(wide, len(self._order))
            some = self._choosable(self._order, chosen)
        noise = np.frombuffer(self._rng.randbytes(4 * len(some)), np.uint32) / 2**33
        urgency = self._entries.policy.urgency(self._entries.standing(some, crowd))
        rank = urgency + 0.5 * np.isin(some, asked) + noise
        return list(some[np.argsort(-rank, kind="stable")[:count]].tolist())

    def _choosable(self, some: Array, chosen: set[int]) -> Array:
        """Misses, or what the cache has but cannot give to this seat."""
        some = self._unseen(some)
        some = some[~self._servable(some)]
        return some[~np.isin(some, np.fromiter(chosen, np.int64, len(chosen)))]

    def _shuffled(self, samples: Array) -> Array:
        order: Array = np.argsort(np.frombuffer(self._rng.randbytes(8 * len(samples)), np.uint64))
        return samples[order]
