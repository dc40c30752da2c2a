"""Spot checks: now and then, what a cache gives is made anew, and compared bit for bit.

A fingerprint of code cannot be complete: what it does not see shows here.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from headrace.cache.backends import entry_word as W
from headrace.cache.entries.codec import Codec, Described, NotKept
from headrace.cache.share import Share
from headrace.caching.counts import Counter
from headrace.core.errors import StoreError

FEW = 4
"""Hits in each form that are checked first, in each worker."""
SHARE = 0.005
"""Of a worker's time, all checks together in the long run."""
clock = time.perf_counter_ns
log = logging.getLogger("headrace.cache")


class SpotChecks:
    """The spot checks of one worker. Their number and cost are counted beyond its own end, by the worker that comes
    after it.
    """

    def __init__(self, counter: Counter, codec: Codec, *, here: bool = False) -> None:
        """Start with nothing checked. ``here``: this is the trainer's own process."""
        self._counter, self._codec, self._here = counter, codec, here

    def due(self, form: int) -> bool:
        """True if a hit in this form is to be made anew: one that should always be the same."""
        if form not in {W.ENCODED, W.DECODED}:
            return False
        return self._counter.checked(form) < FEW or self._counter.credit > self._counter.cost

    def passed(self, took: int) -> None:
        """Note the nanoseconds that went by with a sample, without those for checks."""
        self._counter.credit += int(SHARE * took)

    def make(self, form: int, value: Any, make: Callable[[], Any]) -> tuple[Any, bool]:
        """The sample in that form, made anew, and whether it is the ``value``; that itself where it cannot be had anew.

        Hits need no store: what making it raises is nobody's business. But in the trainer's own process it may come
        from a signal's handler, and is raised unless it is a store's or the system's.
        """
        began = clock()
        try:
            anew = make()
            same = self._alike(value, anew)
        except Exception as error:
            if self._here and (isinstance(error, TimeoutError) or not isinstance(error, (StoreError, OSError))):
                raise
            anew, same = value, True
        took = clock() - began
        self._counter.credit -= took
        self._counter.cost = took
        self._counter.check(form)
        return anew, same

    def _alike(self, value: Any, anew: Any) -> bool:
        try:
            first = self._codec.describe(value)
        except NotKept:
            return True
        try:
            other = self._codec.describe(anew)
        except NotKept:
            return False
        return (first.layout == other.layout and _body(first) == _body(other)) or _unordered(value)

    def differs(self, share: Share, sample: int, index: Any, form: int, scope: str) -> None:
        """Say so, and have nobody use what is kept of this data."""
        self._counter.differs(sample, form)
        log.error(
            "the cache's %s sample %r is not what this job makes of it now: something that changes samples is not seen "
            "by the dataset's identity %s. All that was kept under it is dropped, and this data goes on without the "
            "cache. Give what changed in cache_fingerprint(), or as headrace.deterministic(..., version=...)",
            W.NAMES[form - 1],
            index,
            scope,
        )
        share.spoil()


def _body(described: Described) -> bytes:
    found = bytearray(described.size)
    described.write(memoryview(found), but_last=False)
    return bytes(found)


def _unordered(value: Any) -> bool:
    """True if there is a set in the value, whose order may be another each time."""
    if isinstance(value, dict):
        return any(map(_unordered, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_unordered, value))
    return isinstance(value, (set, frozenset))
