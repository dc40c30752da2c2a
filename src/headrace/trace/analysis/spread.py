"""Spread of a quantity: the figures that every table of a report is made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SECOND = 1e9


@dataclass(frozen=True)
class Spread:
    """Lengths of time, in seconds."""

    count: int = 0
    total: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    least: float = 0.0
    p25: float = 0.0
    p50: float = 0.0
    p75: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @property
    def variability(self) -> float:
        return self.std / self.mean if self.mean else 0.0


def spread(nanoseconds: npt.NDArray[Any]) -> Spread:
    """The spread of lengths in nanoseconds; all zeros for an empty array."""
    if not len(nanoseconds):
        return Spread()
    seconds = nanoseconds / SECOND
    percentiles = np.percentile(seconds, [0, 25, 50, 75, 90, 99, 100]).tolist()
    return Spread(len(seconds), float(seconds.sum()), float(seconds.mean()), float(seconds.std()), *percentiles)


def computed(spans: npt.NDArray[Any]) -> float | None:
    """Share of their time that the CPU clocks of their threads advanced; None where that was not recorded."""
    known = spans[spans["cpu"] >= 0]
    return ratio(known["cpu"].sum(), known["elapsed"].sum()) if len(known) else None


def share(hits: npt.NDArray[Any]) -> float:
    """Part of the conditions that hold; 0 when there are none."""
    return float(np.mean(hits)) if len(hits) else 0.0


def ratio(part: float, whole: float) -> float:
    """``part`` of ``whole``, 0 when there is no whole."""
    return float(part) / float(whole) if whole else 0.0
