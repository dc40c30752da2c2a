"""The costs of samples' stages in one process, told to the cache now and then: its division is planned from them."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cache.division import Sums
from headrace.cache.entries.codec import Codec, NotKept
from headrace.cache.share import Share
from headrace.staging.stages import Stage

TELL_NS = 1_000_000_000
SIZED = 32
"""Of the samples made from the store, every so manieth is measured in all its forms; the first ones are, each."""
FIRST = 8
RARELY = 256
"""The same of stages that are left to a device and run for that alone."""
NEVER = 1 << 50
"""Bytes of what cannot be kept."""


class _StageNames(NamedTuple):
    """The names of the sums kept of a stage, beside the time it took, which has the stage's name."""

    runs: str
    cpu: str
    bytes: str
    sized: str


_SUMS = {
    "fetch": _StageNames("fetched", "fetch_cpu", "encoded_bytes", "encoded_sized"),
    "decode": _StageNames("decoded", "decode_cpu", "decoded_bytes", "decoded_sized"),
    "augment": _StageNames("augmented", "augment_cpu", "augmented_bytes", "augmented_sized"),
}


class StageTimes:
    """Adds up. Times are nanoseconds; CPU time is that of the process, whose threads may help a stage."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self._told, self._made = codec, time.monotonic_ns(), 0
        self._sums = dict.fromkeys(Sums._fields, 0)
        self._used, self._queued = time.process_time_ns(), _queued()
        self._sizes: dict[int, int] = {}

    def read(self, took: int, used: int, size: int) -> None:
        """An entry was read, with so much CPU time."""
        sums = self._sums
        sums["read"] += took
        sums["reads"] += 1
        sums["read_bytes"] += size
        sums["read_cpu"] += used

    def stage(self, stage: Stage, took: int, used: int) -> None:
        """A stage was run, with so much CPU time."""
        sums, names = self._sums, _SUMS[stage.name]
        sums[stage.name] += took
        sums[names.runs] += 1
        sums[names.cpu] += used

    def left(self, stage: Stage, used: int) -> None:
        """A stage was left to a device, which costs nothing here; or run to be kept, which is not done again."""
        self._sums[_SUMS[stage.name].runs] += 1
        self.aside(used)

    def aside(self, used: int) -> None:
        """Note CPU time that is no cost of samples."""
        self._used += used

    def rarely(self) -> bool:
        """True if a stage that is left to a device is run to see what it makes."""
        return self._made <= FIRST or self._made % RARELY == 0

    def due(self) -> bool:
        """True if the sizes of the forms of this sample, which is made from the store, are wanted."""
        self._made += 1
        return self._made <= FIRST or self._made % SIZED == 0

    def size(self, stage: Stage, value: Any, share: Share) -> None:
        """Note the room that an entry of what the stage made would take."""
        size = NEVER
        if stage.keeps:
            with suppress(NotKept):
                size = self._sizes[stage.form] = share.footprint(self._codec.describe(value))
        self._sized(stage, size)

    def latest(self, form: int) -> int:
        """Bytes of the entry in that form that was measured last; 0 while none was."""
        return self._sizes.get(form, 0)

    def never(self, stage: Stage) -> None:
        """Note that what the stage makes cannot be kept."""
        self._sized(stage, NEVER)

    def _sized(self, stage: Stage, size: int) -> None:
        self._sums[_SUMS[stage.name].bytes] += size
        self._sums[_SUMS[stage.name].sized] += 1

    def tell(self, share: Share) -> None:
        """A sample was made; it is told once in a second."""
        now, self._sums["made"] = time.monotonic_ns(), self._sums["made"] + 1
        if now - self._told > TELL_NS:
            used, queued, sums = time.process_time_ns(), _queued(), Sums(**self._sums)
            # What this process used that is none of the stages: scheduling, collating, keeping.
            others = max(0, used - self._used - sums.cpu)
            # Also where it could not be told: a server that is away is not asked with every sample.
            self._told = now
            if share.measure(sums._replace(other_cpu=others, queued=queued - self._queued)):
                self._used, self._queued = used, queued
                self._sums = dict.fromkeys(Sums._fields, 0)


def _queued() -> int:
    """Nanoseconds that this process waited for a core so far; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
