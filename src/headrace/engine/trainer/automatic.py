"""An automatic number of lanes: what a policy has found for a loader, and for other loaders over the same dataset."""

import os
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.options import LanesRule
from headrace.engine.trainer import cores
from headrace.plan.lanes import RULES, LaneRates

RESERVE = 0.1
"""Share of the free memory that lanes leave alone."""
DESCRIPTORS = 4
"""Descriptors of this process for each lane, about."""


class Automatic:
    """The number of one loader, from epoch to epoch."""

    def __init__(self, dataset: Any, rule: LanesRule) -> None:
        """Begins with what was found for the dataset before, or with one lane per core."""
        self._most = cores.most_lanes()
        self._policy, self._dataset = RULES[rule](self._most), _reference(dataset)
        _, found = _FOUND.get(id(dataset), (None, cores.automatic_workers()))
        self.lanes = min(self._most, found)

    def bound(self, lanes: int) -> None:
        """A limit of the system allows no more than these."""
        self._most = lanes
        self._keep(lanes)

    def decide(self, observed: LaneRates) -> int:
        lanes = self._policy.lanes(replace(observed, affordable=min(observed.affordable, self._most)))
        self._keep(lanes)
        return lanes

    def _keep(self, lanes: int) -> None:
        self.lanes = lanes
        dataset = None if self._dataset is None else self._dataset()
        if self._dataset is not None and dataset is not None:
            _FOUND[id(dataset)] = self._dataset, lanes


_FOUND: dict[int, tuple["weakref.ref[Any]", int]] = {}
"""Numbers found, by the identity of the dataset, for as long as it lives."""


def _reference(dataset: Any) -> "weakref.ref[Any] | None":
    """A weak reference to the dataset; None for what cannot be referred to without keeping it alive, such as a
    list.
    """
    forget: Any = partial(_FOUND.pop, id(dataset))  # no Python code: a Ctrl-C that came in it would be lost
    try:
        return weakref.ref(dataset, forget)
    except TypeError:
        return None


def affordable(pids: list[int], batches: int) -> int:
    """Further lanes that fit into this rank's part of memory, each as large as the largest and with its ``batches``.

    Nor do they take more than half of the descriptors and processes that limits leave.
    """
    largest = max(map(_own_memory, pids), default=0)
    room = int(cores.free_memory() * (1 - RESERVE)) // cores.ranks() // max(1, largest + batches)
    return min(room, cores.free_descriptors() // (2 * DESCRIPTORS), cores.free_processes() // 2 // cores.ranks())


def _own_memory(pid: int) -> int:
    """Bytes that a process does not share with others, about."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
