"""Whether a process that shows its pulse still runs, as far as somebody can tell who looks now and then."""

LOOK_SECONDS = 1.0
"""Between two looks no more time than this counts: whoever looks may have been stopped, and the other with it."""


class Pulse:
    """Seconds for which a counter has not changed. Time is an argument."""

    def __init__(self, count: int, now: float) -> None:
        """``count``: where the counter stands ``now``."""
        self._count, self._looked, self.silent = count, now, 0.0

    def look(self, count: int, now: float) -> float:
        """Where the counter stands ``now``; for how long it has stood there while it was looked at."""
        if count != self._count:
            self._count, self.silent = count, 0.0
        else:
            self.silent += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        return self.silent
