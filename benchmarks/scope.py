"""Which part of an experiment is run, and how long it may take."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.report import Report


@dataclass(frozen=True)
class Scope:
    """Some cases by name, or all; a time by which the last must have ended, from now."""

    quick: bool
    only: Collection[str] = ()
    minutes: float = float("inf")
    began: float = field(default_factory=time.monotonic)

    def chosen(self, names: Collection[str]) -> list[str]:
        """The cases to run, in their own order."""
        return [name for name in names if not self.only or name in self.only]

    def deadlines(self, weights: Mapping[str, float]) -> Iterator[float]:
        """For each case the time by which it should end: each gets its weight's share of what is left."""
        left = sum(weights.values())
        end = self.began + 60 * self.minutes
        for weight in weights.values():
            now = time.monotonic()
            yield now + (end - now) * weight / left
            left -= weight

    def close(self, report: Report) -> None:
        """Say in the report what was chosen and how long it took."""
        if self.only:
            report.part = "-".join(re.sub(r"\W+", "_", name).strip("_") for name in sorted(self.only))
            report.notes.append(f"only: {', '.join(sorted(self.only))}")
        report.notes.append(f"took {(time.monotonic() - self.began) / 60:.1f} minutes in all")
