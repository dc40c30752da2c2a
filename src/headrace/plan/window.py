"""How many rows to have asked for ahead of those taken: opened gradually, to what bandwidth and delay call for.

Rows are *asked for*, *arrive*, and are *taken* by whoever works on them. The window bounds those asked for and not
taken. It opens by one for every ``ramp`` taken, so that the load on the network never exceeds the steady one by more
than that fraction, until it is twice what the network holds at its best rate: the product of the highest rate and the
shortest delay seen lately. While the window is what limits the rate, the product grows with it; once something else
does, it stays.
"""

from collections import deque

RECENT_NS = 10_000_000_000
"""Rates and delays older than this are forgotten: connections change."""
LEAST_INTERVAL_NS = 20_000_000
"""A rate is counted over at least this long, and at least over one delay."""


class Window:
    """Numbers in, a number out. Times are nanoseconds of one clock."""

    def __init__(self, batch: int, ramp: int, most: int, now: int, *, fixed: bool = False) -> None:
        """Begins with two batches. ``most``: rows it never exceeds; ``fixed``: it opens to just that.

        ``ramp``: rows taken for every one by which it opens; 0 opens it at once.
        """
        self._batch, self._ramp, self._most, self._fixed = max(1, batch), ramp, max(1, most), fixed
        self._limit = float(min(self._most, 2 * self._batch))
        self._rates: deque[tuple[int, float]] = deque()  # (when, rows a nanosecond), falling
        self._delays: deque[tuple[int, int]] = deque()  # (when, delay), rising
        self._since, self._count = now, 0
        if ramp == 0:
            self._limit = float(self._most if fixed else min(self._most, 64 * self._batch))

    @property
    def limit(self) -> int:
        """Rows that may be asked for and not taken."""
        return int(self._limit)

    @property
    def target(self) -> int:
        """What it opens to."""
        if self._fixed:
            return self._most
        if not self._rates or not self._delays:
            return min(self._most, 2 * self._batch)
        product = self._rates[0][1] * self._delays[0][1]
        return min(self._most, int(2 * product) + 2 * self._batch)

    def arrived(self, took: int, now: int) -> None:
        """A row came, after ``took``."""
        _note(self._delays, now, took, smaller=True)
        self._count += 1
        elapsed = now - self._since
        if elapsed >= max(LEAST_INTERVAL_NS, self._delays[0][1]):
            _note(self._rates, now, self._count / elapsed, smaller=False)
            self._since, self._count = now, 0

    def taken(self, rows: int) -> None:
        """Rows were taken: there is room for as many, and for a few more until the window is open."""
        target = self.target
        if self._ramp == 0:
            self._limit = float(max(self._limit, target))
        elif self._limit < target:
            self._limit = min(float(target), self._limit + rows / self._ramp)
        else:
            self._limit = max(float(target), self._limit - rows / self._ramp)


def _note(kept: "deque[tuple[int, float]] | deque[tuple[int, int]]", now: int, value: float, *, smaller: bool) -> None:
    """The smallest (or largest) of the recent values stays in front."""
    while kept and (kept[-1][1] >= value if smaller else kept[-1][1] <= value):
        kept.pop()
    kept.append((now, value))  # type: ignore[arg-type]  # a deque of either kind
    while kept[0][0] < now - RECENT_NS:
        kept.popleft()
