"""What each experiment gets of the hour that all of them may take, and of the ten minutes of a quick run.

Minutes are about what it needs on two quiet cores with few repeats, measured or reckoned from parts of it; cases are
those that fit, where not all do. An experiment that would take hours in full runs short in the hour, and
what takes minutes even then is left out of a quick run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Of one experiment."""

    minutes: float
    """Of the hour."""
    quick: float = 0.0
    """Of ten minutes; 0: left out."""
    cases: tuple[str, ...] = ()
    """All of them where none is named."""
    short: bool = False
    """It runs as in a quick run, in the hour too."""


SHARES: Mapping[str, Share] = {
    "overhead": Share(3.2, 0.8),
    "shuffle": Share(0.9, 0.1),
    "startup": Share(1.2, 0.5),
    "images": Share(3.2, 1.1),
    "scheduling": Share(2.7, cases=("0.3 % stragglers",), short=True),
    "burning": Share(2.9, cases=("0.3 % stragglers",), short=True),
    "policies": Share(2.2, short=True),
    "ablation": Share(1.8, cases=("0.3 % stragglers",), short=True),
    "accuracy": Share(2.0),
    "cached_accuracy": Share(2.2),
    "device_accuracy": Share(1.5, 0.4),
    "memory": Share(2.0, 0.4),
    "pressure": Share(2.2, 0.5),
    "gpu": Share(3.0, 1.0),
    "delivery": Share(2.0, 1.0),
    "busy": Share(6.0, 2.0, cases=("speech 3 s, random, CPUs at 80 %", "0.3 % stragglers, CPUs at 80 %")),
    "resnet": Share(4.0, 2.0),
    "on_device": Share(8.0, 3.0),
    "advice": Share(1.0, cases=("30 ms of waiting",), short=True),
    "profilers": Share(3.0, 1.0),
    "attribution": Share(2.0, 0.5),
    "pipelines": Share(2.0, 0.5),
    "ceiling": Share(2.0, 0.8),
    "keeping": Share(2.7, 0.6),
    "scale": Share(2.8, 0.3),
    "hits": Share(2.6, 0.6),
    "sharing": Share(1.8, 0.9),
    "splits": Share(3.0, cases=("completion order",)),
    "throttled": Share(1.3, 0.4),
    "makespan": Share(3.6, 1.3),
    "network": Share(3.8, cases=("distance", "start")),
    "cluster": Share(2.0),
    "remote_gpu": Share(3.5, 1.5),
    "remote": Share(0.4, cases=("CPU per sample",), short=True),
    "streaming": Share(4.5, cases=("100 KB, 150 ms", "10 KB, 20 ms")),
}
"""In the order in which they run."""
ABOUT_GPUS = frozenset({"gpu", "delivery", "busy", "resnet", "on_device", "remote_gpu"})
MINUTES, QUICK_MINUTES = 58.0, 9.5
"""What all of them may take together; the rest of an hour and of ten minutes is for installing and writing."""


def taking_part(*, quick: bool, gpu: bool) -> list[str]:
    """The experiments of a run of all."""
    return [name for name, share in SHARES.items() if (gpu or name not in ABOUT_GPUS) and (share.quick or not quick)]


class Allowance:
    """Minutes that each of several experiments may take, by weight: what one leaves, the others have."""

    def __init__(self, minutes: float, weights: Iterable[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end, self._left = clock, clock() + 60 * minutes, list(weights)

    def next(self) -> float:
        """Of the one that begins now."""
        share = self._left[0] / sum(self._left)
        del self._left[0]
        return max(0.0, self._end - self._clock()) / 60 * share
