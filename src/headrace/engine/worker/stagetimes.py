"""What the stages of samples cost in one process, told to the cache now and then: what its division is planned from."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.cache.codec import Codec, NotKept
from headrace.cache.division import Sums
from headrace.cache.share import Share

TELL_NS = 1_000_000_000
SIZED = 8
"""Of the samples made from the store, every so manieth is measured in all its forms; the first ones are, each."""
FIRST = 4
NEVER = 1 << 50
"""Bytes of what cannot be kept."""


class StageTimes:
    """Adds up. Times are nanoseconds; CPU time is that of the process, whose threads may help a stage."""

    def __init__(self, codec: Codec) -> None:
        """Nothing yet."""
        self._codec, self._sums, self._told, self._made = codec, [0] * len(Sums._fields), time.monotonic_ns(), 0
        self._used, self._queued = time.process_time_ns(), _queued()

    def read(self, took: int, used: int, size: int) -> None:
        """An entry was read, with so much CPU time."""
        self._sums[6] += took
        self._sums[7] += 1
        self._sums[8] += size
        self._sums[18] += used

    def stage(self, stage: int, took: int, used: int) -> None:
        """A stage was run: 0 fetched, 1 decoded, 2 augmented."""
        self._sums[2 * stage] += took
        self._sums[2 * stage + 1] += 1
        self._sums[15 + stage] += used

    def due(self) -> bool:
        """Whether the sizes of the forms of this sample, which is made from the store, are wanted."""
        self._made += 1
        return self._made <= FIRST or self._made % SIZED == 0

    def size(self, stage: int, value: Any, share: Share) -> None:
        """How much room an entry of this would take; None: such are not kept."""
        size = NEVER
        if value is not None:
            with suppress(NotKept):
                size = share.footprint(self._codec.encode(value).size)
        self._sums[9 + 2 * stage] += size
        self._sums[10 + 2 * stage] += 1

    def tell(self, share: Share) -> None:
        """A sample was made; it is told once in a second."""
        now = time.monotonic_ns()
        self._sums[20] += 1
        if now - self._told > TELL_NS:
            used = time.process_time_ns()
            self._sums[19] = max(0, used - self._used - sum(self._sums[15:19]))
            self._used = used
            self._sums[21] = -self._queued
            self._queued = _queued()
            self._sums[21] += self._queued
            share.book.measure(Sums(*self._sums))
            self._sums, self._told = [0] * len(self._sums), now


def _queued() -> int:
    """Nanoseconds that this process waited for a core so far; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
