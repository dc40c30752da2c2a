"""An automatic number of lanes: what a policy has found for a loader, and for other loaders over the same dataset."""

import os
import weakref
from pathlib import Path
from typing import Any

from headrace.core.options import LanesRule
from headrace.engine.consumer.cores import automatic_workers, free_memory, most_lanes, ranks
from headrace.plan.lanes import RULES, Observed

RESERVE = 0.1
"""Share of the free memory that lanes leave alone."""


class Automatic:
    """The number of one loader, from epoch to epoch."""

    def __init__(self, dataset: Any, rule: LanesRule) -> None:
        """Begins with what was found for the dataset before, or with one lane per core."""
        most = most_lanes()
        self._policy, self._dataset = RULES[rule](most), _reference(dataset)
        _, found = _FOUND.get(id(dataset), (None, automatic_workers()))
        self.lanes = min(most, found)

    def decide(self, observed: Observed) -> int:
        """Lanes for the next period."""
        self.lanes = self._policy.lanes(observed)
        dataset = None if self._dataset is None else self._dataset()
        if self._dataset is not None and dataset is not None:
            _FOUND[id(dataset)] = self._dataset, self.lanes
        return self.lanes


_FOUND: dict[int, tuple["weakref.ref[Any]", int]] = {}
"""By the identity of the dataset, for as long as it lives."""


def _reference(dataset: Any) -> "weakref.ref[Any] | None":
    """None for what cannot be referred to without keeping it alive, such as a list."""
    number, forget = id(dataset), _FOUND.pop  # by its own name: this may be called when the module is gone
    try:
        return weakref.ref(dataset, lambda _: forget(number, None))
    except TypeError:
        return None


def affordable(pids: list[int], batches: int) -> int:
    """Further lanes that fit into this rank's part of memory, each as large as the largest and with its ``batches``."""
    largest = max(map(_own_memory, pids), default=0)
    return int(free_memory() * (1 - RESERVE)) // ranks() // max(1, largest + batches)


def _own_memory(pid: int) -> int:
    """Bytes that a process does not share with others, about."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
