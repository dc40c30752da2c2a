"""The samples with no loader at all: processes that take one index after the other and drop what they made.

No collating, no transport, no trainer: what the cores can sustain, and what each sample costs while all are busy.
What shares the machine with the samples, as a trainer does, can run beside them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PATIENCE = 60.0
LOOK = 2e-4
"""Seconds between two looks at how far the samples are."""


@dataclass(frozen=True)
class Bare:
    """An epoch without a loader."""

    busy: float
    """Seconds that a process had work, mean of all: so the end, when they run out one by one, is left out."""
    each: list[float]
    """CPU seconds of every sample."""
    processes: int

    @property
    def rate(self) -> float:
        """Samples per second while all are busy."""
        return len(self.each) / self.busy


def sustain(dataset: Any, processes: int, beside: Callable[[], object] | None = None, batch: int = 1) -> Bare:
    """One epoch in index order, whoever is free taking the next.

    Meanwhile this process calls `beside` for each `batch` of samples begun, as soon as it returned from the last call.
    """
    forked = multiprocessing.get_context("fork")
    count = len(dataset)
    taken, spent = forked.Value("q", 0), forked.RawArray("d", count)
    ends, start = forked.RawArray("d", processes), forked.Barrier(processes + 1)

    def work(number: int) -> None:
        torch.set_num_threads(1)
        start.wait(PATIENCE)
        while True:
            with taken.get_lock():
                index = taken.value
                taken.value += 1
            if index >= count:
                break
            began = time.thread_time()
            dataset[index]
            spent[index] = time.thread_time() - began
        ends[number] = time.monotonic()

    crew = [forked.Process(target=work, args=(number,)) for number in range(processes)]
    for process in crew:
        process.start()
    start.wait(PATIENCE)
    began = time.monotonic()
    called = 0
    while beside is not None and any(process.is_alive() for process in crew):
        if taken.value >= (called + 1) * batch:
            called += 1
            beside()
        else:
            time.sleep(LOOK)
    for process in crew:
        process.join()
    if any(process.exitcode for process in crew):
        raise RuntimeError("a process without loader failed")
    return Bare(float(np.mean(ends)) - began, list(spent), processes)
