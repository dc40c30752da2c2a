"""A loader's places in a cache: kept over its epochs, left when it is closed."""

import os
import warnings
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from headrace.cache import division as D
from headrace.cache import job_identity
from headrace.cache.backends import shm
from headrace.cache.backends.backend import RoomUse
from headrace.cache.backends.entry_word import NAMES, Array
from headrace.cache.cache_options import Cache, open_share, title
from headrace.cache.peers import Unit
from headrace.cache.remaining import Remaining
from headrace.cache.serving import Answer, Serving
from headrace.cache.share import START, Share
from headrace.caching.counts import Counts
from headrace.caching.dividing import Divider, shown
from headrace.caching.plans import Caching
from headrace.core.stats import CacheUse, Division
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.fetched import Rows
from headrace.plan.splitting import LEFT_TO_DEVICE
from headrace.staging.stages import OwnNumber, Stages, staged, standing, told_revisions, unasked

_places: set[tuple[int, str, int]] = set()
"""The places that loaders of this process have: process, dataset and number."""


class Hits:
    """Counts since the loader was made: what samples began with, as those who made them say."""

    def __init__(self, counters: LoaderCounters) -> None:
        """``counters``: the loader's, to be kept up to date."""
        self._counters, self.counts = counters, Counts()
        self.exchanged = 0
        self._warned = False
        self._room, self._division = RoomUse(), Division()

    def learn(self, room: RoomUse, division: Division) -> None:
        """Note what the cache holds of this data, for all jobs, and how it is divided."""
        self._room, self._division = room, division
        self.show()

    def warn(self, share: Share, where: str) -> None:
        """Say once that the cache is not used for this data any more: what it gave was not what the job makes."""
        if self._warned:
            return
        found = self.counts.difference()
        if found is None and not (share.is_left and share.is_spoilt()):
            return
        self._warned = True
        share.leave()
        how = "found so before" if found is None else f"found with the {NAMES[found.form - 1]} sample {found.sample}"
        msg = (
            f"what {where} keeps of this data is not what the job makes of it ({how}): something that changes samples "
            "is not seen by the dataset's identity. All of it was dropped, and this data goes on without the cache "
            "until `headrace cache clear`. Give what changed in cache_fingerprint(), or as "
            "headrace.deterministic(..., version=...)"
        )
        warnings.warn(msg, RuntimeWarning, stacklevel=2)

    def show(self) -> None:
        found, room = self.counts.total(), self._room
        self._counters.cache = CacheUse(
            found.encoded,
            found.decoded,
            found.augmented,
            found.misses,
            self.exchanged,
            found.cheap,
            checked=found.checked_encoded + found.checked_decoded,
            differing=found.differing,
            kept=room.kept,
            evicted=room.evicted,
            lost=room.lost,
            bytes=sum(room.held),
            division=self._division,
        )


class Membership:
    """A place in a cache: a share in it, and what this rank is served."""

    def __init__(self, caching: Caching, hits: Hits, counters: LoaderCounters) -> None:
        """Raises ``CacheError`` where the cache cannot be had."""
        self._pid, self._open, self._hits = os.getpid(), True, hits
        self._before = 0  # samples that were made when the epoch began
        self._place = _taken(f"{caching.options.url} {title(caching.scopes, caching.samples)}")
        unit = Unit(job_identity.job(), f"{job_identity.launch()}-{self._place[2]}", caching.seed)
        options = caching.options
        _warn_of_size(options)
        self.caching = replace(caching, unit=unit, counts=hits.counts.path())
        with ExitStack() as undoing:
            undoing.callback(_places.discard, self._place)
            self.share = open_share(options, caching.scopes, caching.samples, unit)
            undoing.callback(self.share.close)
            self._agree(options)
            self.serving = Serving(self.share, options.most, takes_augmented=not caching.in_order)
            undoing.pop_all()
        there = caching.start == LEFT_TO_DEVICE
        self._divider = Divider(self.serving, counters, plans=options.split is None, on_device=there)
        self.count()

    def _agree(self, options: Cache) -> None:
        """Agree on how the room is divided, or who asks for a division: whoever comes first says it."""
        backend = self.share.backend
        alone = not backend.reports()
        if alone:
            self.share.adopt()
        now = backend.division()
        new = D.agreed(now, options.split, self.caching.start, alone=alone)
        if new is not None:
            backend.divide(new, None if now is None else now.number)

    def begin(self, outside: Array | None) -> None:
        self._before = self._hits.counts.made()
        self.serving.begin(outside)

    def request(self, asked: Array, remaining: Remaining | None) -> Answer:
        answer = self.serving.request(asked, remaining)
        self._hits.warn(self.share, self.share.backend.where)
        if self._divider.look():
            if not self.share.backend.rests and self.share.backend.division() is None:
                self._agree(self.caching.options)  # a server has forgotten it
            self.count()
        else:
            self._hits.show()
        return answer

    def saw(self, samples: Array) -> None:
        self.serving.saw(samples, self._hits.counts.made() - self._before)

    def count(self) -> None:
        backend = self.share.backend
        self._hits.warn(self.share, backend.where)
        if backend.rests:
            self._hits.show()
        else:
            self._hits.learn(backend.room(), shown(self._divider.facts()))

    def is_for(self, caching: Caching) -> bool:
        """True if the membership is this process's, of this job, and for that data."""
        own = self.caching
        if self._pid != os.getpid():
            return False
        if own.beside and own.beside == caching.beside and own.scopes != caching.scopes:
            # The store was written to, nobody knows when: what was read since then was kept as of before.
            self.share.clear()
        return own == caching and self.share.unit.job == job_identity.job()

    def close(self) -> None:
        """Leave; idempotent. A process forked from the one that joined leaves nothing."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        _places.discard(self._place)
        with ExitStack() as closing:
            closing.callback(self.share.close)
            self.serving.end()


def _warn_of_size(options: Cache) -> None:
    """Warn of a cache that this host's shared memory cannot hold: it would end up smaller, or take what training
    needs.
    """
    if not options.url.startswith("shm:"):
        return
    with suppress(OSError):
        root, memory = os.statvfs(shm.ROOT), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        there = min(root.f_blocks * root.f_frsize, memory)
        if options.bytes > there:
            msg = (
                f"{options!r} is larger than the {there >> 20:,} MiB of shared memory that this host has: keeping ends "
                "when that is full; choose a smaller size, or a larger /dev/shm"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)


def _taken(dataset: str) -> tuple[int, str, int]:
    """The first place that no other loader of this process has: so those of all ranks of a job have the same."""
    place = next(place for number in count() if (place := (os.getpid(), dataset, number)) not in _places)
    _places.add(place)
    return place


def caching(options: Cache, dataset: Any) -> tuple[Caching, Stages]:
    """The caching of a dataset, as it is now, and its stages; ``CacheError`` if it has no stages, or cannot be told
    from others.
    """
    now = standing(dataset, afresh=True)  # before it is told apart: of what changes in between nothing is kept
    stages = staged(dataset)
    there = any(stage.to_keep is not None for stage in stages.steps)
    beside = "" if Rows.of(dataset) is None else unasked(dataset)
    start = LEFT_TO_DEVICE if there else START
    about = Caching(options, stages.scopes, stages.samples, standing=now, beside=beside, start=start)
    return replace(about, revisions=told_revisions(dataset)), stages


def origins(stages: Stages, length: int) -> Array | None:
    """The cache's number of each index; None: the same."""
    if isinstance(stages.origin, OwnNumber):
        return None
    return np.fromiter((stages.origin(index) for index in range(length)), np.int64, length)
