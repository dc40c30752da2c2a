"""Memory that entries are read into, used again once nothing refers to it.

Large blocks that are freed go back to the kernel, and a fresh page costs more than copying one. A lane has dozens of
samples of 768 KB in hand when they are cheap, and had fresh pages for each.
"""

import sys
from collections import deque

import numpy as np

from headrace.cache.entries.entry import Bytes

LEAST = 1 << 16
"""Bytes from which on blocks are used again: smaller ones the C library keeps."""
MOST = 1 << 26
"""Bytes that are kept for it, at most: a batch of 64 samples of 768 KB, which a lane may have in hand at once."""


def _references(blocks: deque[Bytes]) -> int:
    """References to the first block, counted always in the same way: which loads count is the interpreter's choice."""
    return sys.getrefcount(blocks[0])


_FREE = _references(deque([np.empty(0, np.uint8)]))
"""As many as there are to a block that nobody has."""


class Blocks:
    """The reusable blocks of one thread. Whoever has a view of a block, or a buffer of one, has a reference to it."""

    def __init__(self) -> None:
        self._blocks: deque[Bytes] = deque()
        self._held = 0

    def take(self, size: int) -> Bytes:
        """``size`` bytes with whatever is in them, the caller's until nothing refers to them any more."""
        if size < LEAST:
            return np.empty(size, np.uint8)
        for _ in range(len(self._blocks)):
            free = _references(self._blocks) == _FREE
            block = self._blocks.popleft()
            if free and not size <= len(block) <= 2 * size:
                self._held -= len(block)
                continue
            self._blocks.append(block)
            if free:
                return block[:size]
        block = np.empty(size, np.uint8)
        if self._held + size <= MOST:
            self._blocks.append(block)
            self._held += size
        return block[:size]
