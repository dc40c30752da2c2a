"""Counting for ``stats()``: one mutable counters per loader, shared by its runs."""

import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from headrace.core.errors import TooManyErrors
from headrace.core.options import OnError, Skip
from headrace.core.stats import NAMES, Changes, Counters, Failure, Operation, Stats
from headrace.core.story import StoryLog
from headrace.engine.members import told
from headrace.engine.memory.reservation import Reservation
from headrace.engine.worker import failure
from headrace.plan import operation_costs as costs
from headrace.sched.gauges import Gauges

HISTORY = 64
"""Changes of a value that are remembered."""


class History:
    """The changes of a value, lately."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._changes: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        self.last = 0.0
        """The value now; 0 before the first one."""

    def note(self, value: float) -> None:
        if not self._changes or self._changes[-1][1] != value:
            self._changes.append((time.monotonic() - self._began, value))
            self.last = value

    def changes(self) -> Changes:
        """The changes, oldest first."""
        return tuple(self._changes)


KEPT, KEPT_BYTES = 1000, 16 << 20
"""Failures that are remembered, the newest ones: so many, and so much that their exceptions hold."""


class Failures:
    """Samples that were left out: how many, and the newest of them."""

    def __init__(self) -> None:
        self.count = 0
        self._newest: deque[tuple[Failure, int]] = deque()
        self._bytes = 0

    def add(self, index: Any, error: BaseException) -> None:
        """Remember one, without the frames it came through: they would keep the epoch, and all they hold, alive."""
        note = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        if note and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        _strip(error)
        size = failure.footprint(error)
        if size is None:
            size, error = failure.LEAST, failure.stand_in(error)
        self.count += 1
        self._newest.append((Failure(index, error), size))
        self._bytes += size
        while len(self._newest) > KEPT or (self._bytes > KEPT_BYTES and len(self._newest) > 1):
            self._bytes -= self._newest.popleft()[1]

    def newest(self) -> tuple[Failure, ...]:
        """The newest failures, oldest first."""
        return tuple(kept for kept, _ in self._newest)


def _strip(error: BaseException) -> None:
    """Let go of the frames of an exception, of those it came from and of those it groups."""
    todo, seen = [error], set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


_loaders = count(1)


@dataclass(slots=True)
class LoaderCounters(Counters):
    """Counts since the loader was made, and what the others in its ``Stats`` are made from."""

    number: int = field(default_factory=lambda: next(_loaders))
    """Tells the loaders of a process apart."""
    skipped: Failures = field(default_factory=Failures)
    lane_changes: History = field(default_factory=History)
    thresholds: History = field(default_factory=History)
    ready: float = 0.0
    """Shares of the outstanding batches that were ready when one was asked for, added up."""
    asked: int = 0
    story: StoryLog = field(default_factory=StoryLog)
    """The story of what happened, where that is told."""

    @property
    def lanes(self) -> int:
        """The number of workers that may work at once, now."""
        return int(self.lane_changes.last)

    @property
    def threshold_seconds(self) -> float:
        """The cost from which on a sample is slow, now."""
        return self.thresholds.last

    def snapshot(self) -> Stats:
        return Stats(
            **{counter.name: getattr(self, counter.name) for counter in fields(Counters)},
            lanes=self.lanes,
            lane_changes=self.lane_changes.changes(),
            threshold_seconds=self.threshold_seconds,
            thresholds=self.thresholds.changes(),
            occupancy=self.ready / max(1, self.asked),
            failed=self.skipped.count,
            skipped=self.skipped.newest(),
        )


PROBATION = 100
"""The least number of samples that a share is taken of where the length of an epoch is unknown."""


class Errors:
    """Treatment of failed samples in one epoch."""

    def __init__(self, policy: OnError, counters: LoaderCounters, epoch_samples: int | None, dataset: Any) -> None:
        """``epoch_samples``: how many samples the epoch has, if known. ``dataset``: says what they are called."""
        self._dataset = dataset
        self._policy, self._counters, self._total = policy, counters, epoch_samples
        self._seen = 0
        self._skipped = 0

    @property
    def skips(self) -> bool:
        """True if failures are left out rather than raised."""
        return isinstance(self._policy, Skip)

    def passed(self, samples: int) -> None:
        """Count the samples that are in a batch."""
        self._seen += samples
        self._counters.samples += samples

    def judged(self, index: Any, raised: BaseException, original: BaseException | None) -> BaseException | None:
        """A sample failed: what is to be raised, which says which it is, or None where it is only counted."""
        shown = original if self.skips and original is not None else raised
        _name(shown, told(self._dataset, index))
        if not isinstance(self._policy, Skip):
            return raised
        self._skipped += 1
        self._seen += 1
        self._counters.skipped.add(index, shown)
        total = self._total if self._total is not None else max(self._seen, PROBATION)
        if self._skipped > self._policy.max_fraction * total:
            msg = (
                f"{self._skipped} of {total} samples failed, more than max_fraction={self._policy.max_fraction} "
                f"allows; the last was index {index!r}. stats().skipped lists the last ones"
            )
            error = TooManyErrors(msg)
            error.__cause__ = raised
            return error
        return None


def summary(memory: Reservation, names: Sequence[str]) -> tuple[float, tuple[Operation, ...]]:
    """(mean bytes of a sample, operations) since the memory was reserved, as the workers count them."""
    gauges = Gauges(memory.words, memory.dims)
    accounts = gauges.accounts(len(names))
    if not accounts:
        return 0.0, ()
    account = costs.added(accounts)
    found = []
    for number, name in enumerate(names, 1):
        counts = costs.of(account, number)
        found.append(
            Operation(
                name=name,
                count=sum(counts[: costs.BINS]),
                mean_seconds=costs.mean(counts) / 1e9,
                p50_seconds=costs.quantile(counts, 0.5) / 1e9,
                p90_seconds=costs.quantile(counts, 0.9) / 1e9,
                hand_offs=gauges.put_aside_at(number),
            )
        )
    return costs.mean(costs.of(account, 0)), tuple(found)


class _SampleNote(str):
    """A note that says which sample failed."""

    __slots__ = ()


def _name(error: BaseException, sample: str) -> None:
    """Note which sample it was, in the place of another that the same exception was raised for before."""
    others = [note for note in getattr(error, "__notes__", ()) if type(note) is not _SampleNote]
    error.__notes__ = [_SampleNote(f"{NAMES}{sample}"), *others]
