"""The number of blocks that may be under way at once: numbers in, numbers out."""

FIRST = 64
"""At the beginning: as many as are held before the first sample is drawn."""
QUEUED, QUEUED_S = 1.5, 0.02
"""So many times the least delay, and that much, is what a path takes on which requests queue."""
SMOOTH = 32


class BlockFlight:
    """A limit that opens by one for each block that came without having queued, where others had to wait for it.

    So it doubles with each round trip until the path is full. Memory bounds it, too; a single late answer says nothing
    about the path. Where answers begin to queue, it closes by one for every few of them, and never below ``FIRST``.
    """

    def __init__(self) -> None:
        self.size = FIRST
        self.flying = 0
        self._least, self._late = float("inf"), 0
        self._held_up = 0  # blocks that were under way when others had to wait, and have not come yet

    @property
    def has_room(self) -> bool:
        """True if another block may be asked for."""
        if self.flying < self.size:
            return True
        self._held_up = self.flying
        return False

    def asked(self) -> None:
        self.flying += 1

    def ended(self, took: float | None) -> None:
        """A block came after so many seconds; None: it will not come."""
        self.flying -= 1
        if took is None:
            return
        self._least = min(self._least, took)
        if took > QUEUED * self._least + QUEUED_S:
            self._late += 1
            if self._late % SMOOTH == 0:
                self.size = max(FIRST, self.size - SMOOTH // 4)
        elif self._held_up:
            self._held_up -= 1
            self.size += 1
