"""The other users of a dataset in a cache, and what they have still to see, as they publish it: hints, which may
lag.
"""

import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.cache.backends.backend import Backend
from headrace.cache.backends.entry_word import Array
from headrace.cache.division import Rank

PERIOD = 0.02
"""Seconds between two looks at who is there, at least."""
SHARE, REMOTE_SHARE = 50, 500
"""Whatever is looked at is looked at again after so many times what that took; so a server that many ask is not kept
busy by it."""
REMOTE_PERIOD, REMOTE_SEEN = 2.0, 1.0
"""Seconds between two looks over a network, at most, at who is there and at what others have seen."""
COUNTED = 256
"""Epochs under way that are counted, at most: of further ones nobody knows what they need."""
_RECORD = struct.Struct("<q8q")


class JobReport(NamedTuple):
    """A rank's report of itself."""

    turn: int
    """Number of the epoch that it is in; -1: none."""
    rank: Rank = Rank()

    def packed(self) -> bytes:
        """Give the report as bytes, for others."""
        return _RECORD.pack(self.turn, *self.rank.words())

    @classmethod
    def of(cls, content: bytes) -> "JobReport | None":
        """The report that ``packed`` made bytes of; None for what makes no sense."""
        if len(content) < _RECORD.size:
            return None
        turn, *words = _RECORD.unpack_from(content)
        return cls(turn, Rank.of(words)) if -1 <= turn < 1 << 40 and min(*words[:5], *words[6:]) >= 0 else None


class Unit(NamedTuple):
    """Ranks that share an epoch: the same loader in all processes of a job."""

    job: str
    loader: str
    """Of which launch, and which of its loaders."""
    seed: int | None = None
    """What the random numbers of its samples come from; None: from nothing that another job has."""

    def __str__(self) -> str:
        return f"{self.job}.{self.loader}"


class Peers:
    """The ranks and epochs that use a dataset, as one process sees them."""

    def __init__(self, backend: Backend, own: Unit) -> None:
        """``own``: the unit that asks."""
        self._backend, self._own = backend, own
        self._again = self._stale = 0.0
        self._names: list[str] = []
        self._theirs: list[bool] = []  # those of other units
        self._seen: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
        self.ranks: list[tuple[str, Rank]] = []
        """Those who live, with the job of each."""
        self.jobs = 1
        """With an epoch under way, this one included."""

    def look(self, *, now: bool = False) -> None:
        """Look at who is there, if it is time to."""
        if not now and time.monotonic() < self._again:
            return
        began = self._clock()
        turns: dict[str, int] = {}
        ranks, jobs = [], {self._own.job}
        reports = self._backend.reports()
        for name, content in reports.items():
            report = JobReport.of(content)
            unit, _, _ = name.rpartition(".")
            job = unit.partition(".")[0]
            if report is None or not job or unit.startswith("."):
                continue
            # Before its first epoch a rank lives, and needs nothing.
            ranks.append((job, report.rank))
            if report.turn >= 0:
                turns[unit] = max(turns.get(unit, 0), report.turn)
                jobs.add(job)
        names = [f"{unit}.{turn}" for unit, turn in sorted(turns.items())][:COUNTED]
        if names != self._names:
            self._names, self._stale = names, 0.0
            self._theirs = [name.rpartition(".")[0] != str(self._own) for name in names]
        self.ranks, self.jobs = ranks, max(1, len(jobs))
        # With many ranks each looks more seldom, so that the server's work grows with their number and no faster.
        rest = max(PERIOD, self._rest(began, REMOTE_PERIOD)) * (1 + len(reports) / 32)
        self._again = time.monotonic() + rest

    def _clock(self) -> float:
        """The clock that a look is timed by; a busy machine makes none that needs no network expensive."""
        return time.monotonic() if self._backend.slow else time.thread_time()

    def _rest(self, began: float, most: float) -> float:
        """Seconds for which a look is good that began then; over a network no more than ``most``."""
        took = self._clock() - began
        return min(REMOTE_SHARE * took, most) if self._backend.slow else SHARE * took

    @property
    def units(self) -> int:
        """Epochs under way."""
        return len(self._names)

    @property
    def others(self) -> int:
        """The number of epochs under way beside the own one."""
        return sum(self._theirs)

    def need(self, samples: Array) -> Array:
        """The number of others that have still to see each of these samples."""
        found = np.zeros(len(samples), np.int64)
        for theirs, seen in zip(self._theirs, self._whole(), strict=True):
            if theirs:
                found += 1 - (seen[samples >> 3] >> (samples & 7).astype(np.uint8) & 1)
        return found

    def need_one(self, sample: int) -> int:
        """The same number for one sample, for a tenth of the time."""
        seen = zip(self._theirs, self._whole(), strict=True)
        return sum(theirs and not each[sample >> 3] >> (sample & 7) & 1 for theirs, each in seen)

    def need_of(self, first: int, count: int) -> Array:
        """The number of epochs that have still to see each of ``count`` samples in a row from ``first``, a multiple
        of 8.
        """
        found = np.full(count, self.units, np.int64)
        for seen in self._backend.seen(self._names, first, count):
            found -= np.unpackbits(seen, count=count, bitorder="little")
        return found

    def _whole(self) -> Sequence[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        if time.monotonic() >= self._stale or len(self._seen) != len(self._names):
            began, before = self._clock(), self._seen
            self._seen = self._backend.seen(self._names, 0, self._backend.samples)
            self._stale = time.monotonic() + self._rest(began, REMOTE_SEEN)
            # Its bits are deleted with the end of an epoch.
            if any(had.any() and not has.any() for had, has in zip(before, self._seen, strict=False)):
                self._again = 0.0  # an epoch is over, and another one may have begun
        return self._seen
