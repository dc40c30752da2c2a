"""Space in the arena where payloads wait for a worker: who owns it decides here where each of them lies.

Free space is kept by size class, four to a doubling, so that a payload that stays long keeps nobody else's space.
Pure: offsets in, offsets out. One owner; others only say what may be used again.
"""

from collections.abc import Iterable

ALIGN = 64


def size_class(size: int) -> int:
    """The size that is set aside for ``size`` bytes: at most a quarter more, beyond small ones."""
    blocks = max(1, -(-size // ALIGN))
    step = 1 << max(0, blocks.bit_length() - 3)
    return -(-blocks // step) * step * ALIGN


class Extents:
    """Pieces of ``capacity`` bytes."""

    def __init__(self, capacity: int, live: Iterable[tuple[int, int]] = ()) -> None:
        """``live``: (offset, size) of pieces that are in use already, given out by an owner before this one."""
        self.capacity = capacity
        self._used: dict[int, int] = {}  # offset -> what was set aside
        self._free: dict[int, list[int]] = {}  # size class -> offsets
        self._end = 0
        self.used = 0
        for offset, size in live:
            self._hold(offset, size_class(size))
            self._end = max(self._end, offset + size_class(size))

    def _hold(self, offset: int, size: int) -> None:
        self._used[offset] = size
        self.used += size

    def allocate(self, size: int) -> int | None:
        """Where ``size`` bytes may be written; None while there is no room."""
        wanted = size_class(size)
        offsets = self._free.get(wanted)
        if offsets:
            offset = offsets.pop()
        elif self._end + wanted <= self.capacity:
            offset = self._end
            self._end += wanted
        else:
            larger = [known for known, free in self._free.items() if known > wanted and free]
            if not larger:
                return None
            wanted = min(larger)
            offset = self._free[wanted].pop()
        self._hold(offset, wanted)
        return offset

    def free(self, offset: int) -> None:
        """Nobody reads what lies there any more. Unknown offsets are ignored: it may have been said twice."""
        size = self._used.pop(offset, None)
        if size is None:
            return
        self.used -= size
        self._free.setdefault(size, []).append(offset)
        if not self._used:  # begin anew, so that a change of sizes leaves nothing behind
            self._free.clear()
            self._end = 0
