"""Samples in stages, begun at the latest one that a cache has."""

import logging
import time
from typing import Any

from headrace.cache import words as W
from headrace.cache.codec import Codec, Corrupt
from headrace.cache.options import open_share, open_tier
from headrace.cache.share import Share
from headrace.core.errors import CacheError
from headrace.engine.staging.caching import Caching
from headrace.engine.staging.kinds import codec
from headrace.engine.staging.plans import LOOK, Plan
from headrace.engine.staging.stages import Stages, staged
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stagetimes import StageTimes

clock = time.perf_counter_ns
log = logging.getLogger("headrace.cache")
PAUSE = 10.0
"""Seconds before a worker that could not have the cache tries again."""


class Staged:
    """``dataset[index]``, from what the cache has of it where it has something; what is worth keeping is kept."""

    def __init__(self, dataset: Any, caching: Caching, share: Share | None = None) -> None:
        """``share``: the rank's own, in its own process; a worker opens one for itself, with the first plan.

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
        self.place: Plan | None = None
        """The plan of the next sample."""

    def __call__(self, index: Any) -> Any:
        """The sample."""
        plan, self.place = self.place, None
        share = None if plan is None else self._opened(plan.badge)
        if plan is None or share is None:
            return self._dataset[index]
        form, value = self._found(share, index, plan)
        if self.observer is not None:
            self.observer.tier = form
        stamp = self._stamp(index) if plan.keep else None
        sized = form == W.NOWHERE and self._times.due()
        stages = self._stages
        steps = ((stages.fetch, W.ENCODED), (stages.decode, W.DECODED), (stages.augment, W.AUGMENTED))
        for stage, (step, result) in enumerate(steps[form:], form):
            began = clock()
            value = step(value if stage else index)
            self._times.stage(stage, clock() - began)
            kept = result != W.ENCODED or stages.encodes
            if sized:
                self._times.size(stage, (stamp, value) if kept else None, share)
            if plan.keep == result and kept:
                self._keep(share, index, result, (stamp, value))
        self._times.tell(share)
        return value

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
        """What the cache has of a sample: the form, 0 for none, and the value."""
        forms = (W.DECODED, W.ENCODED) if plan.form == LOOK else (plan.form,) if plan.form else ()
        sample = self._stages.origin(index)
        for form in forms:
            began = clock()
            with share.reading() as reading:
                view = reading.get([share.key(sample, form)])[0]
                entry = None if view is None else bytearray(view)  # what follows may change it, and must not be torn
                del view
            try:
                if entry is not None:
                    stamp, value = self._codec.decode(entry, own=True)
                    if stamp == self._stamp(index):
                        self._times.read(clock() - began, len(entry))
                        return form, value
            except (Corrupt, TypeError, ValueError):
                entry = bytearray()
            if plan.form != LOOK or entry is not None:
                share.lost(sample, form)
        return W.NOWHERE, None

    def _stamp(self, index: Any) -> list[int] | None:
        try:
            found = self._stages.stamp(index)
        except OSError:
            return None  # fetching it will say why
        return None if found is None else list(found)

    def _keep(self, share: Share, index: Any, form: int, value: Any) -> None:
        share.keep(self._stages.origin(index), form, self._codec.encode(value))
