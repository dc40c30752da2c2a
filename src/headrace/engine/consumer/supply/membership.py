"""A loader's places in a cache: kept over its epochs, left when it is closed."""

import hashlib
import os
from contextlib import ExitStack
from typing import Any

import numpy as np

from headrace.cache.book import Answer
from headrace.cache.options import Cache, open_share, open_tier, room_of
from headrace.cache.share import Share
from headrace.cache.words import Array
from headrace.engine.consumer.supply.dividing import Divider, shown
from headrace.engine.consumer.supply.hits import Hits
from headrace.engine.consumer.tally import Tally
from headrace.engine.staging.caching import Caching
from headrace.engine.staging.stages import Stages, staged


class Membership:
    """One place: a share in the cache, with the tier it stands on."""

    def __init__(self, caching: Caching, hits: Hits, tally: Tally) -> None:
        """``CacheError`` where the cache cannot be had."""
        self.caching, self._pid, self._open = caching, os.getpid(), True
        self._hits, options = hits, caching.options
        self._tier = open_tier(options)
        try:
            self.share: Share = open_share(options, self._tier, caching.scopes, caching.samples, job_number())
            self.share.book.agree(options.split, room_of(self._tier))
        except BaseException:
            self._tier.close()
            raise
        self._divider = Divider(self.share, self._tier, tally, plans=options.split is None)
        self.count()

    @property
    def badge(self) -> tuple[int, int]:
        """See ``Share``."""
        return self.share.book.badge

    def begin(self, epoch: int, *, members: Array | None = None, done: Any = ()) -> None:
        """See ``Share``."""
        self.share.begin(epoch, members=members, done=done)

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``Share``."""
        answer = self.share.request(asked, exchange=exchange)
        if self._divider.look():
            self.count()
        return answer

    def count(self) -> None:
        """Bring what the ledger knows into the tally."""
        self._hits.learn(self.share.book.counts(), shown(self.share.book.facts()))

    def close(self) -> None:
        """Leave; idempotent. A process forked from the one that joined leaves nothing."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        with ExitStack() as closing:
            closing.callback(self._tier.close)
            self.share.close()


class Memberships:
    """A loader's places: one as a rule, more while it is iterated several times at once."""

    def __init__(self) -> None:
        """None yet."""
        self.hits = Hits()
        self._free: list[Membership] = []

    def take(self, caching: Caching, tally: Tally) -> Membership:
        """The place of an earlier epoch, if the data and the stages are still the same; else a new one."""
        self.hits.tally = tally
        while (found := self._taken()) is not None:
            if found.caching == caching:
                return found
            found.close()
        return Membership(caching, self.hits, tally)

    def put(self, membership: Membership) -> None:
        """It is not used at the moment."""
        self._free.append(membership)

    def close(self) -> None:
        """Leave; idempotent."""
        while (found := self._taken()) is not None:
            found.close()

    def _taken(self) -> Membership | None:
        """One that is not used, if there is any: each goes to one thread, which needs no lock for that."""
        try:
            return self._free.pop()
        except IndexError:
            return None


def caching(options: Cache, dataset: Any) -> tuple[Caching, Stages]:
    """What is kept of a dataset, as it is now; ``CacheError`` if it has no stages, or cannot be told from others."""
    stages = staged(dataset)
    return Caching(options, stages.scopes, stages.samples), stages


def origins(stages: Stages, length: int) -> Array | None:
    """The cache's number of each index; None: the same."""
    if stages.origin is int:
        return None
    return np.fromiter((stages.origin(index) for index in range(length)), np.int64, length)


def job_number() -> int | None:
    """What the ranks of a distributed job have in common, as torch's launchers tell them; None: this one is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    told = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    return int.from_bytes(hashlib.blake2b("|".join(told).encode(), digest_size=7).digest(), "little") | 1
