"""Samples in stages, begun at the latest one that a cache has."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import getitem
from resource import RUSAGE_THREAD, getrusage
from typing import Any

from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Entry
from headrace.cache.cache_options import open_share
from headrace.cache.entries.codec import Codec, Corrupt, NotKept
from headrace.cache.share import Share
from headrace.caching.counts import Counter
from headrace.caching.plans import CachePlace, Caching, Plan, codec, read_plans
from headrace.caching.spot_checks import SpotChecks
from headrace.caching.stagetimes import StageTimes
from headrace.caching.told import WRITTEN, ToldDataset, say
from headrace.caching.write_buffer import WriteBuffer
from headrace.core.errors import CacheError, NotOnDevice, StoreError
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.randomness.seeding import untouched
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.fetched import Rows
from headrace.fetching.wire import Arrived
from headrace.ondevice.pixels.bundle import named
from headrace.plan.keeping import LOCAL, REMOTE, KeepingWorth
from headrace.staging.stages import Stage, Stages, are_told, staged

clock, cpu_clock = time.perf_counter_ns, time.process_time_ns
log = logging.getLogger("headrace.cache")
ROW = len(wire.places([None]))
"""Bytes that the place of a row takes in front of the plans."""
PAUSE, LONGEST = 2.0, 30.0
"""Seconds before a worker that could not have the cache tries again: the first time, and at most."""

_refused: set[str] = set()
"""What this process has said that it cannot keep."""


class Staged:
    """``dataset[index]``, from what the cache has of it where it has something; what is worth keeping is kept."""

    def __init__(
        self, dataset: Any, caching: Caching, counter: Counter, share: Share | None = None, arena: Arena | None = None
    ) -> None:
        """``counter``: of what samples begin with. ``share``: the rank's own, in its own process; a worker opens one
        for itself, with the first plan.
        ``arena``: where rows lie that a fetcher has brought, if one does.
        """
        self._dataset, self._caching = dataset, caching
        self._get: Callable[[Any], Any] = partial(getitem, dataset)
        self._stages: Stages = staged(dataset, caching.scopes)
        self._observer: Observer | None = None
        self._codec: Codec = codec()
        self._share = share
        self._told = ToldDataset(
            dataset, caching.standing, () if arena is not None else caching.revisions, here=share is not None
        )
        if share is not None:
            share.use(self._told.holds)
        self._again, self._pause = 0.0, PAUSE
        self._times = StageTimes(self._codec)
        self._fixed = caching.options.split is not None
        self._near = caching.options.url.startswith("shm:")
        self._worth = KeepingWorth(LOCAL if self._near else REMOTE)
        self._counter = counter
        self._checks = SpotChecks(counter, self._codec, here=share is not None)
        self._gathered = WriteBuffer()
        self._arena = arena
        self._rows = None if arena is None else Rows.of(dataset)
        self.place: CachePlace | None = None
        """The plan of the next sample, and where its row lies."""

    def reads(self, body: memoryview, count: int) -> list[CachePlace]:
        """The plans and places that were written for ``count`` samples: see ``Group.notes``."""
        if self._rows is None:
            return list(map(CachePlace, read_plans(body, count)))
        places = wire.read_places(body, count)
        return list(map(CachePlace, read_plans(body[count * ROW :], count), places))

    def __call__(self, index: Any) -> Any:
        (plan, row), self.place = self.place or (None, None), None
        share = None if plan is None else self._opened()
        if plan is None or share is None or share.is_left:
            self._counter.found(W.NOWHERE)
            return named(index, self._get(index) if row is None else self._made_of(index, row))
        try:
            return named(index, self._made(share, index, plan, row))
        except Exception:
            with self._stages.naming(index):
                raise

    def watched_by(self, observer: Observer) -> None:
        """Tell it what samples are made of, and let it see the stages."""
        self._observer = observer
        self._get = observer.getter()
        self._stages = staged(self._dataset, self._caching.scopes, observer.noted)

    def stay_away(self) -> None:
        """Do without the cache for good: the dataset here may be another than the one it was opened for."""
        self._again = math.inf

    def begin(self) -> None:
        """A batch begins, in the trainer's own process: what a changed dataset gives is not what the cache has."""
        if self._share is not None and not self._share.is_left and not self._told.is_same():
            self._share.leave()

    def settle(self) -> None:
        """Let what is to be kept be found: before samples are handed on, so that an epoch that is over has kept all."""
        self._counter.tell()
        if self._share is not None:
            keeps = self._worth.keeps
            timer = cpu_clock if self._near else clock
            began = timer() if keeps else 0
            self._gathered.keep(self._share)
            self._share.settle()
            if keeps:
                self._worth.settled((timer() - began) / 1e9)

    def _made(self, share: Share, index: Any, plan: Plan, row: Arrived | None) -> Any:
        start = clock()
        form, value = self._found(share, index, plan)
        if self._checks.due(form) and (row is not None or self._rows is None):
            passed = clock() - start
            value = self._checked(share, index, form, value, row)
            start = clock() - passed
        self._counter.found(form)
        if self._observer is not None:
            self._observer.tier = form
        # What was to be found and is stale, or gone, is kept anew as it was: it is known to be worth its room.
        anew = form == W.NOWHERE and plan.word not in {0, W.LOOK}
        keep = W.form_of(plan.word) if anew else plan.keep
        # Before it is read: a file that changes meanwhile is then of another state than the entry says.
        stamp = self._stamp(index) if keep else None
        sized = form == W.NOWHERE and self._times.due()
        took, spent, waits = 0, 0, 0 if self._fixed or not keep else _waits()
        now, used = clock(), cpu_clock()
        for stage in self._stages.after(form):
            given, kept = value, keep == stage.form and stage.keeps
            if kept and stage.to_keep is not None:
                value = stage.to_keep(given)
            else:
                value = stage.run(given) if row is None or stage.form != W.ENCODED else self._brought(index, row)
            # One reading of the clocks ends a stage and begins the next.
            began, before, now, used = now, used, clock(), cpu_clock()
            took, spent = took + now - began, spent + used - before
            if stage.to_keep is None:
                self._times.stage(stage, now - began, used - before)
            else:
                self._times.left(stage, used - before)
            if sized:
                self._size(share, stage, None if kept else given, (stamp, value))
            size = 0
            # What a device or a fetcher would have to do again is not seen here, and what a user has fixed is kept.
            # Of the rest, one that never waited was only kept from a core, which is no cost of a sample.
            if (
                kept
                and (
                    (self._fixed or anew or row is not None or stage.to_keep is not None)
                    or self._pays(stage, took if _waits() > waits else spent)
                )
                and stamp == self._stamp(index)
                and (form != W.NOWHERE or self._is_told(row))
            ):  # else it may have been read before its file changed, or after
                size = self._keep(share, index, stage.form, (stamp, value))
            if sized or kept:
                last = used if self._near else now  # a server is waited for
                now, used = clock(), cpu_clock()
                if size and not sized and not self._fixed:
                    self._worth.kept(((used if self._near else now) - last) / 1e9, size)
        self._times.tell(share)
        self._checks.passed(clock() - start)
        return value

    def go_on(self, index: Any, form: int, stamp: list[int] | None, value: Any) -> Any:
        """The sample, made of a form of it that others have made; which is kept if they read it of the same file."""
        self._counter.found(W.NOWHERE)
        share = self._opened()
        if share is not None and not share.is_left and stamp == self._stamp(index):
            self._keep(share, index, form, (stamp, value))
        return self._stages.run(index, value, form)

    def _checked(self, share: Share, index: Any, form: int, value: Any, row: Arrived | None) -> Any:
        """The sample in that form, made anew: all that is kept is dropped if it is another."""
        stamp = self._stamp(index)

        def make() -> Any:
            made = index
            for stage in self._stages.steps[:form]:
                run = stage.run if stage.form != form else stage.to_keep or stage.run
                made = run(made) if row is None or stage.form != W.ENCODED else self._brought(index, row)
            return made

        with untouched():
            anew, same = self._checks.make(form, value, make)
        # What was written to meanwhile is another, and no wonder.
        told = row is None or row.is_told
        if not same and told and stamp == self._stamp(index) and self._told.holds():
            self._checks.differs(share, self._stages.origin(index), index, form, self._caching.scopes[form - 1])
        return anew

    def _size(self, share: Share, stage: Stage, given: Any, value: tuple[Any, Any]) -> None:
        """Tell how much room what the stage made would take. Where that is left to a device it is made of ``given``,
        now and then; None: it was made.
        """
        if stage.to_keep is None or given is None:
            self._times.size(stage, value, share)
        elif self._times.rarely():
            before = cpu_clock()
            try:
                self._times.size(stage, (value[0], stage.to_keep(given)), share)
            except NotOnDevice:
                self._times.never(stage)
            except Exception:  # noqa: BLE001  (the sample's own: who decodes it in earnest says so)
                return
            finally:
                self._times.aside(cpu_clock() - before)

    def _made_of(self, index: Any, row: Arrived) -> Any:
        """The sample, without a cache."""
        return self._stages.run(index, self._brought(index, row), W.ENCODED)

    def _brought(self, index: Any, row: Arrived) -> Any:
        """The stored form of a sample, as it was brought. A row that could not be read raises the store's error."""
        assert self._arena is not None
        assert self._rows is not None
        if self._observer is not None:
            self._observer.brought(row.size, row.retries, row.began, row.took)
        return self._rows.encoded(index, self._arena.read(row, self._rows.key(index)))

    def _is_told(self, row: Arrived | None) -> bool:
        """True if what was read just now is of the revision that it would be kept under, as far as its store can say.

        Where this process reads without a fetcher that is asked before entries can be found, see ``ToldDataset``.
        """
        if row is not None:
            told = row.is_told
        elif self._rows is None:
            return True
        else:  # the cache had it, and has it no more: it was read here
            with suppress(StoreError):
                if are_told(self._dataset, self._caching.revisions):
                    return True
            told = False
        if not told:
            say(WRITTEN)
        return told

    def _opened(self) -> Share | None:
        """The share; None where the cache cannot be had in this process: samples then come from the store."""
        if self._share is None and time.monotonic() >= self._again:
            caching = self._caching
            try:
                self._share = open_share(caching.options, caching.scopes, caching.samples, caching.unit)
                self._share.use(self._told.holds)
            except CacheError as error:
                self._again = time.monotonic() + self._pause
                if self._pause == PAUSE:
                    log.warning("a worker goes on without the cache, and tries again now and then: %s", error)
                self._pause = min(LONGEST, 2 * self._pause)
        return self._share

    def _found(self, share: Share, index: Any, plan: Plan) -> tuple[int, Any]:
        """The form and value that the cache has of a sample; ``NOWHERE`` and the index, if it has nothing."""
        if not plan.word:
            return W.NOWHERE, index
        began, used = clock(), cpu_clock()
        sample = self._stages.origin(index)
        entry = Entry(sample, share.word(sample) if plan.word == W.LOOK else plan.word)
        form = W.form_of(entry.word)
        if plan.word == W.LOOK and form == W.AUGMENTED:
            return W.NOWHERE, index
        found = share.read(entry)
        if found is None:
            return W.NOWHERE, index
        try:
            stamp, value = self._codec.rebuild(*found)
            # The file may have been written to since.
            if stamp == self._stamp(index):
                self._times.read(clock() - began, cpu_clock() - used, len(found[1]))
                return form, value
        except (Corrupt, TypeError, ValueError):
            pass
        share.lost(entry)
        return W.NOWHERE, index

    def _stamp(self, index: Any) -> list[int] | None:
        try:
            found = self._stages.stamp(index)
        except OSError:
            return None  # fetching it will say why
        return None if found is None else list(found)

    def _pays(self, stage: Stage, cost: int) -> bool:
        pays = self._worth.pays(cost / 1e9, self._times.latest(stage.form))
        if not pays:
            self._counter.cheap()
        return pays

    def _keep(self, share: Share, index: Any, form: int, value: Any) -> int:
        """The bytes of its body; 0: it cannot be kept."""
        try:
            described = self._codec.describe(value)
        except NotKept as error:
            error.path = error.path.removeprefix("[1]")  # beside its stamp
            if error.reason not in _refused:
                _refused.add(error.reason)
                log.warning("what %s gives is not kept: %s", self._stages.steps[form - 1].name, str(error))
            return 0
        sample = self._stages.origin(index)
        if not self._gathered.add(sample, form, described):
            share.hold(sample, form, described)
        return described.size


def _waits() -> int:
    """The number of times this thread has waited for anything but a core."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw
