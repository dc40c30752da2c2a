"""A lock on a file that nobody waits for: it is had within a moment, or one goes on without.

The kernel frees it when its holder dies. Whoever enters twice, from a signal handler or a finalizer, does not get it,
and does not free it either. One who was broken off inside, by an exception in the very last step, loses it.
"""

import fcntl
import time

MOMENT = 0.05
"""Seconds that others are waited for, at most."""
STEP = 0.0001
BROKEN_OFF = 1.0
"""Seconds after which a holder in this process has been broken off: a section takes microseconds."""
FIRST, LONGEST = 0.05, 5.0
"""Seconds that a lock which could not be had is left alone: the first time, and at most."""


class Latch:
    """A lock on an open file, one for each: those of one process exclude each other too."""

    def __init__(self, fd: int) -> None:
        """``fd``: opened by this process, for this alone."""
        self._fd = fd
        self._holder: dict[int, float] = {}
        self._pause, self._again = FIRST, 0.0

    @property
    def rests(self) -> bool:
        """True if the lock is left alone, since it could not be had."""
        return time.monotonic() < self._again

    def take(self) -> float | None:
        """Take the lock, and return what to ``give`` it back with; None: somebody else has it."""
        mine = now = time.monotonic()
        # One step, within which no signal handler runs. The very object says who holds it, not its value.
        held = self._holder.setdefault(0, mine)
        # This process has it already: the lock is the open file's, and would be given again.
        if held is not mine:
            if now - held < BROKEN_OFF:
                return None
            self._holder[0] = mine
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() - now > MOMENT:
                    self._again = time.monotonic() + self._pause
                    self._pause = min(LONGEST, 2 * self._pause)
                    self._holder.pop(0, None)
                    return None
                time.sleep(STEP)
            else:
                self._pause = FIRST
                return mine

    def give(self, taken: float | None) -> None:
        """Give the lock back. Nothing happens where it was not taken."""
        if taken is not None and self._holder.get(0) is taken:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._holder.pop(0, None)
