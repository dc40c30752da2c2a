"""Samples in stages, begun at the latest one that a cache has."""

import logging
import time
from typing import Any

from headrace.cache import words as W
from headrace.cache.codec import Codec, Corrupt
from headrace.cache.options import open_share, open_tier
from headrace.cache.share import Share
from headrace.core.errors import CacheError
from headrace.engine.fetcher import wire
from headrace.engine.fetcher.arena import Arena
from headrace.engine.fetcher.wire import Arrived
from headrace.engine.staging import plans
from headrace.engine.staging.caching import Caching
from headrace.engine.staging.kinds import codec
from headrace.engine.staging.plans import LOOK, Plan
from headrace.engine.staging.stages import Stages, staged
from headrace.engine.worker.brought import Rows
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stagetimes import StageTimes

clock, cpu_clock = time.perf_counter_ns, time.process_time_ns
log = logging.getLogger("headrace.cache")
Place = tuple[Plan, Arrived | None]
ROW = len(wire.places([None]))
"""Bytes that the place of a row takes in front of the plans."""
PAUSE = 10.0
"""Seconds before a worker that could not have the cache tries again."""


class Staged:
    """``dataset[index]``, from what the cache has of it where it has something; what is worth keeping is kept."""

    def __init__(self, dataset: Any, caching: Caching, share: Share | None = None, arena: Arena | None = None) -> None:
        """``share``: the rank's own, in its own process; a worker opens one for itself, with the first plan.
        ``arena``: where rows lie that a fetcher has brought, if one does.

        To be made before the dataset's operations are noted, see ``staged``.
        """
        self._dataset, self._caching = dataset, caching
        self._stages: Stages = staged(dataset, caching.scopes)
        self.observer: Observer | None = None
        """Who is told what samples are made of."""
        self._codec: Codec = codec()
        self._share, self._own = share, share is None
        self._badge, self._again = (-1, 0), 0.0
        self._times = StageTimes(self._codec)
        self._arena = arena
        self._rows = None if arena is None else Rows.of(dataset)
        self.place: Place | None = None
        """The plan of the next sample, and where its row lies."""

    def reads(self, body: memoryview, count: int) -> list[Place]:
        """What was written for ``count`` samples: see ``Allotted`` and ``Planned``."""
        if self._rows is None:
            return [(plan, None) for plan in plans.read(body, count)]
        places = wire.read_places(body, count)
        return list(zip(plans.read(body[count * ROW :], count), places, strict=True))

    def __call__(self, index: Any) -> Any:
        """The sample."""
        (plan, row), self.place = self.place or (None, None), None
        share = None if plan is None else self._opened(plan.badge)
        if plan is None or share is None:
            return self._dataset[index] if row is None else self._made_of(index, row)
        form, value = self._found(share, index, plan)
        if self.observer is not None:
            self.observer.tier = form
        stamp = self._stamp(index) if plan.keep else None
        sized = form == W.NOWHERE and self._times.due()
        for stage in self._stages.after(form):
            began, used = clock(), cpu_clock()
            value = stage.run(value) if row is None or stage.form != W.ENCODED else self._brought(index, row)
            self._times.stage(stage, clock() - began, cpu_clock() - used)
            if sized:
                self._times.size(stage, (stamp, value), share)
            if plan.keep == stage.form and stage.keeps:
                self._keep(share, index, stage.form, (stamp, value))
        self._times.tell(share)
        return value

    def _made_of(self, index: Any, row: Arrived) -> Any:
        """The sample, without a cache."""
        value = self._brought(index, row)
        for stage in self._stages.after(W.ENCODED):
            value = stage.run(value)
        return value

    def _brought(self, index: Any, row: Arrived) -> Any:
        """What is stored, as it was brought. A row that could not be read raises the store's error."""
        assert self._arena is not None
        assert self._rows is not None
        if self.observer is not None:
            self.observer.brought(row.size, row.retries, row.began, row.took)
        return self._rows.encoded(self._arena.read(row, self._rows.key(index)))

    def _opened(self, badge: tuple[int, int]) -> Share | None:
        """The share; None where the cache cannot be had in this process: samples then come from the store."""
        if not self._own:
            return self._share
        if badge[0] < 0:  # the rank itself has no seat
            return None
        if self._share is None and time.monotonic() >= self._again:
            self._open()
        if self._share is not None and badge != self._badge:
            self._share.book.stand_in(badge)
            self._badge = badge
        return self._share

    def _open(self) -> None:
        caching = self._caching
        try:
            tier = open_tier(caching.options)
            try:
                self._share = open_share(caching.options, tier, caching.scopes, caching.samples)
            except BaseException:
                tier.close()
                raise
        except CacheError as error:
            self._again = time.monotonic() + PAUSE
            log.warning("this worker goes on without the cache for %d seconds: %s", PAUSE, error)

    def _found(self, share: Share, index: Any, plan: Plan) -> tuple[int, Any]:
        """What the cache has of a sample: the form and the value; ``NOWHERE`` and the index, where it has nothing."""
        forms = (W.DECODED, W.ENCODED) if plan.form == LOOK else (plan.form,) if plan.form else ()
        sample = self._stages.origin(index)
        for form in forms:
            began, used = clock(), cpu_clock()
            with share.reading() as reading:
                view = reading.get([share.key(sample, form)])[0]
                entry = None if view is None else bytearray(view)  # what follows may change it, and must not be torn
                del view
            try:
                if entry is not None:
                    stamp, value = self._codec.decode(entry, own=True)
                    if stamp == self._stamp(index):
                        self._times.read(clock() - began, cpu_clock() - used, len(entry))
                        return form, value
            except (Corrupt, TypeError, ValueError):
                entry = bytearray()
            if plan.form != LOOK or entry is not None:
                share.lost(sample, form)
        return W.NOWHERE, index

    def _stamp(self, index: Any) -> list[int] | None:
        try:
            found = self._stages.stamp(index)
        except OSError:
            return None  # fetching it will say why
        return None if found is None else list(found)

    def _keep(self, share: Share, index: Any, form: int, value: Any) -> None:
        share.keep(self._stages.origin(index), form, self._codec.encode(value))
