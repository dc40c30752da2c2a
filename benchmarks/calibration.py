"""What the models of a cache are given: sizes of entries, rates of the loader, and what it measures of itself."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import headrace
from benchmarks import caches
from benchmarks.arms import Arm
from benchmarks.jobs import Job
from benchmarks.measure import Figures
from headrace.cache import overview
from headrace.cache.backends import local_tables
from headrace.cache.entries import entry
from headrace.caching import dividing
from headrace.caching.plans import codec
from headrace.plan.parameters import Parameters

PLENTY = 1e12
"""Of what sets no limit."""
WARM_UP = 2
"""Epochs that are not measured: the first one fills the cache, the second one may still."""


@dataclass(frozen=True)
class Sizes:
    """Mean bytes of a sample: as a file, and as an entry, encoded and decoded."""

    file: float
    encoded: float
    decoded: float

    @classmethod
    def of(cls, dataset: Any, cache: headrace.Cache | None = None) -> Sizes:
        """In ``cache`` entries take more than their bytes; None: their bytes."""
        known = codec()
        sizes = []
        for index in range(len(dataset)):
            fetched = dataset.fetch(index)
            entries = [entry.length(known.describe((None, value))) for value in (fetched, dataset.decode(fetched))]
            sizes.append((len(fetched[0]), *(entries if cache is None else map(local_tables.footprint, entries))))
        return cls(*(statistics.mean(column) for column in zip(*sizes, strict=True)))


@dataclass(frozen=True)
class Rates:
    """Samples a second that the loader decodes and augments, and that it only augments, with nothing to wait for."""

    decoding: float
    augmenting: float

    @classmethod
    def of(cls, decoding: Figures, augmenting: Figures, cores: float) -> Rates:
        """With all of ``cores``, from two runs during which others used some of them."""
        return cls(*(found["rate"] / left(found, cores) for found in (decoding, augmenting)))

    def with_share(self, share: float) -> Rates:
        """With a part of the cores."""
        return Rates(self.decoding * share, self.augmenting * share)


def left(found: Figures, cores: float) -> float:
    """The share of ``cores`` that others left to a run; the kernel counts in hundredths of a second."""
    return max(0.05, 1 - found["others"] / cores)


def parameters(
    sizes: Sizes, rates: Rates, *, samples: int, room: float, storage: float = PLENTY, link: float = PLENTY
) -> Parameters:
    """``storage`` and ``link``: bytes a second of files, and of entries that come from the cache."""
    return Parameters(
        t_gpu=PLENTY,
        t_da=rates.decoding,
        t_a=rates.augmenting,
        b_nic=PLENTY,
        b_pcie=PLENTY,
        b_cache=link,
        b_storage=storage * sizes.encoded / sizes.file,  # the models know one size of what is encoded
        s_cache=room,
        s_data=sizes.encoded,
        n_total=samples,
        m=sizes.decoded / sizes.encoded,
    )


def load(arm: Arm, dataset: Any, cache: headrace.Cache | None, batch: int, *, epochs: int, room: int = 0) -> Figures:
    """Samples a second after the warm-up and when that was; in which forms samples were found; cores that were used.

    ``room``: bytes that entries may take; 0: as many as the cache has.
    """
    if cache is not None and room:
        caches.fill(room)
    figures = Job(arm, dataset, epochs, batch, cache=cache).run()
    served, walls, uses = (epochs - WARM_UP) * len(dataset), figures["walls"][WARM_UP:], figures["uses"]
    used, busy = sum(figures["cpus"][WARM_UP:]), figures["machine"][-1] - figures["machine"][WARM_UP - 1]
    shares = [0.0, 0.0]
    if cache is not None:
        shares = [(uses[-1][form] - uses[WARM_UP - 1][form]) / served for form in ("encoded", "decoded")]
    return {
        "rate": served / sum(walls),
        "found": shares,
        "cores": used / sum(walls),
        "others": max(0.0, busy - used) / sum(walls),
        "began": figures["ends"][WARM_UP - 1],
        "ended": figures["ends"][-1],
        "division": uses[-1]["division"] if cache is not None else None,
    }


def self_measured(arm: Arm, dataset: Any, cache: headrace.Cache, batch: int, room: int) -> Figures:
    """What a loader's planner is given after some epochs with ``cache``, which is in shared memory."""
    caches.fill(room)
    options = {"batch_size": batch, "shuffle": True, "persistent_workers": True, "cache": cache}
    with arm.open(dataset, **options) as loader:
        until, epoch = time.monotonic() + 2 * dividing.LOOK, 0
        while epoch <= WARM_UP or time.monotonic() < until:  # it reports when it looks
            for _ in loader:
                pass
            epoch += 1
        (facts,) = overview.overview(cache.url, cache.namespace).facts
    given = dividing.measured(facts._replace(room=room), dividing.LOCAL)
    if given is None:
        raise RuntimeError("the loader measured too little of itself")
    return {"given": given}
