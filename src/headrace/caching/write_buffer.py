"""The samples that a lane has in hand and is to keep: copied at once, written together.

The next stage may change a sample, so what is kept is copied before it runs. All that comes after is done for the
samples of a chunk one right after the other: small ones were measured to take a quarter to a third less so.
"""

import numpy as np

from headrace.cache.entries.codec import ALIGN, Described
from headrace.cache.entries.entry import Bytes
from headrace.cache.share import Share

ROOM = 2 << 20
"""Bytes of a chunk that are gathered, at most: they are read again, and shall still be near."""
LARGEST = ROOM // 32
"""Of one sample. Of larger ones the copy costs more than it spares."""
MOST = 64
"""Samples that are gathered."""


class WriteBuffer:
    """The gathered samples of one thread."""

    def __init__(self) -> None:
        self._room: Bytes | None = None  # made with the first sample, and used again
        self._used = 0
        self._waiting: list[tuple[int, int, Described]] = []

    def add(self, sample: int, form: int, described: Described) -> bool:
        """Copy it, to be kept; False: it has to be kept at once, for it is large, or there are enough."""
        begin = -(-self._used // ALIGN) * ALIGN
        end = begin + described.size
        if described.size > LARGEST or end > ROOM or len(self._waiting) >= MOST:
            return False
        if self._room is None:
            self._room = np.empty(ROOM, np.uint8)
        body = memoryview(self._room)[begin:end]  # type: ignore[arg-type]  # numpy does not say that it is a buffer
        described.write(body, but_last=False)
        self._waiting.append((sample, form, Described(described.layout, [(0, body)], described.size)))
        self._used = end
        return True

    def keep(self, share: Share) -> None:
        """All of it, in the order in which it came."""
        # Forgotten first: what fails is not kept, and not tried again with the next chunk.
        waiting, self._waiting, self._used = self._waiting, [], 0
        for sample, form, described in waiting:
            share.hold(sample, form, described)
