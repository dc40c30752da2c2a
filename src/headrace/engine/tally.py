"""Counting for ``stats()``: one mutable tally per loader, shared by its runs."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import TooManyErrors
from headrace.core.options import OnError, Skip
from headrace.core.stats import Changes, Failure, Stats

HISTORY = 64
"""Changes of a value that are remembered."""


class History:
    """How a value changed, lately."""

    def __init__(self) -> None:
        """Time runs from now on."""
        self._began = time.monotonic()
        self._changes: deque[tuple[float, float]] = deque(maxlen=HISTORY)

    def note(self, value: float) -> None:
        """It is this now."""
        if not self._changes or self._changes[-1][1] != value:
            self._changes.append((time.monotonic() - self._began, value))

    def changes(self) -> Changes:
        """Oldest first."""
        return tuple(self._changes)


@dataclass(slots=True)
class Tally:
    """Counts since the loader was made."""

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    workers: int = 0
    restarts: int = 0
    repeats: int = 0
    fast: int = 0
    slow: int = 0
    hand_offs: int = 0
    spares: int = 0
    aside: int = 0
    copied_out: int = 0
    slab_bytes: int = 0
    skipped: list[Failure] = field(default_factory=list)
    lane_changes: History = field(default_factory=History)
    thresholds: History = field(default_factory=History)
    ready: float = 0.0
    """Shares of the outstanding batches that were ready when one was asked for, added up."""
    asked: int = 0

    def snapshot(self) -> Stats:
        """The counts as they are now."""
        lanes, thresholds = self.lane_changes.changes(), self.thresholds.changes()
        derived: dict[str, Any] = {
            "skipped": tuple(self.skipped),
            "lane_changes": lanes,
            "lanes": int(lanes[-1][1]) if lanes else 0,
            "thresholds": thresholds,
            "threshold_seconds": thresholds[-1][1] if thresholds else 0.0,
            "occupancy": self.ready / max(1, self.asked),
        }
        names = Stats.__dataclass_fields__.keys() - derived
        return Stats(**{name: getattr(self, name) for name in names}, **derived)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent here is the caller's wait."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait_seconds += time.perf_counter() - began


PROBATION = 100
"""Where the length of an epoch is unknown, a share is taken of at least this many samples."""


class Errors:
    """What becomes of failed samples in one epoch."""

    def __init__(self, policy: OnError, tally: Tally, epoch_samples: int | None) -> None:
        """``epoch_samples``: how many samples the epoch has, if known."""
        self._policy, self._tally, self._total = policy, tally, epoch_samples
        self._seen = 0
        self._skipped = 0

    @property
    def skips(self) -> bool:
        """Whether failures are left out rather than raised."""
        return isinstance(self._policy, Skip)

    def passed(self, samples: int) -> None:
        """Samples were delivered."""
        self._seen += samples

    def failed(self, index: Any, raised: BaseException, original: BaseException | None) -> None:
        """A sample failed: count it, or raise what the policy says."""
        if not isinstance(self._policy, Skip):
            raise raised
        self._skipped += 1
        self._seen += 1
        self._tally.skipped.append(Failure(index, original if original is not None else raised))
        total = self._total if self._total is not None else max(self._seen, PROBATION)
        if self._skipped > self._policy.max_fraction * total:
            msg = (
                f"{self._skipped} of {total} samples failed, more than max_fraction={self._policy.max_fraction} "
                f"allows; the last was index {index!r}. stats().skipped lists them all"
            )
            raise TooManyErrors(msg) from raised
