"""How long it takes to have an entry from a tier: a small and a large one are put there, read a few times, deleted."""

import secrets
import time
from statistics import median
from typing import NamedTuple

import numpy as np

from headrace.cache import words as W
from headrace.cache.codec import Codec
from headrace.cache.tier import Key, Tier

SMALL, LARGE, TIMES = 1 << 12, 1 << 20, 5


class Speed(NamedTuple):
    """Seconds for an entry, however small, and for each of its bytes."""

    entry: float
    byte: float


GUESS = Speed(1e-4, 5e-10)
"""Of a tier that has no room for a probe."""


def probe(tier: Tier) -> Speed:
    """As a worker reads: a copy of its own, checked. Takes milliseconds in memory, tens of them over a network."""
    scope = secrets.token_hex(16)
    large = min(LARGE, tier.usage().limit // 32)
    found = [_timed(tier, Key(scope, 0, W.DECODED), size) for size in (SMALL, large)]
    if None in found:
        return GUESS
    little, much = (seconds or 0.0 for seconds in found)
    byte = max(0.0, much - little) / max(1, large - SMALL)
    return Speed(max(1e-7, little - SMALL * byte), byte)


def _timed(tier: Tier, key: Key, size: int) -> float | None:
    """Seconds for an entry of that size; None where it cannot be put."""
    codec = Codec()
    entry = codec.encode(np.zeros(size, np.uint8))
    if not tier.put(key, entry.size, entry.write):
        return None
    try:
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            with tier.reading() as reading:
                (view,) = reading.get([key])
                if view is None:
                    return None
                copy = bytearray(view)
                del view
            codec.decode(copy)
            took.append(time.perf_counter() - began)
        return median(took)
    finally:
        tier.delete([key])
