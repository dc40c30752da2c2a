"""Size of the window of samples asked for ahead of their use: numbers in, numbers out, time is an argument."""

from collections import deque
from enum import Enum

from headrace.core.options import Prefetch

GAIN = 2.0
"""Twice what the path holds: as much again waits, ready, for a trainer that takes it in bursts."""
PROBE_GAIN = 0.5  # whatever part of the goal was a queue is at least halved by each probe
ROUND_S = 0.01
ROUND_ARRIVALS = 256
ROUND_DELAYS = 2.0
"""A round is long enough that slow arrivals are among those it counts, and not only the first to come."""
ROUNDS = 10
"""The rate is the best of so many rounds."""
PROBE_EVERY_S = 10.0
PROBE_ARRIVALS = 64
FLOOR_BATCHES = 2
QUEUED, QUEUED_S = 1.5, 0.005
"""So many times the least delay, and that much, is what a path takes on which requests queue."""


class _Start(Enum):
    GRADUAL = "by the ramp"
    QUICK = "by one for every one consumed"
    OVER = "by the ramp, to the goal"


class Window:
    """Opens gradually, then follows bandwidth × delay.

    Counted are samples requested and not yet consumed. The window begins at one batch and grows by one for every
    ``ramp`` consumed, so that requests never exceed consumption by more than a share of 1 / ``ramp``, until it reaches
    its goal. Where no size is given, the goal is ``GAIN`` times the rate at which samples arrive times the time they
    take on an idle path, and as much again as was ever worked on at once: that is no part of the path.
    While the path is not full, a larger window raises the rate, and the goal with it; once it
    is, the rate stays and so does the goal. A full window makes requests queue, which looks like a longer path:
    every ``PROBE_EVERY_S`` the goal is lowered until the queue is gone and the time was measured anew, with requests
    made after that; then as much as the path holds is asked for at once, and the rest is opened gradually again. What
    arrives meanwhile says nothing about the rate.

    A trainer that waits for every sample gets as many as the path carries, however many are requested. So once it has
    waited for the second batch as well as for the first, a window without a given size grows by one for every one
    consumed while it waits, until requests queue: on a long path the ramp alone would take seconds.
    """

    def __init__(self, prefetch: Prefetch, batch: int) -> None:
        self._prefetch = prefetch
        self._batch = batch
        self._floor = FLOOR_BATCHES * batch
        self._open: float = batch
        self._credit = 0
        self._outstanding = 0
        self._working = self._ahead = 0
        self._waited, self._streak = False, 0
        self._start = _Start.GRADUAL if prefetch.window is None and prefetch.ramp else _Start.OVER
        self._least, self._smooth = float("inf"), 0.0
        self._size = 0.0
        self._rates: deque[float] = deque(maxlen=ROUNDS)
        self._delay: float | None = None
        self._fresh: float | None = None
        self._round: tuple[float, int, float] | None = None
        self._probe_due: float | None = None
        self._probing = False
        if not prefetch.ramp:
            self._open = self.goal

    @property
    def goal(self) -> int:
        """The size to open to, as far as is known."""
        most = self._prefetch.memory // max(1, int(self._size))
        if self._prefetch.window is not None:
            wanted = self._prefetch.window * self._batch
        elif self._probing:
            wanted = self._on_the_path(PROBE_GAIN) + self._working
        else:
            wanted = self._on_the_path(GAIN) + self._ahead
            if self._start is _Start.QUICK:
                wanted = max(wanted, int(self._open))
        return max(1, min(wanted, most))

    def _on_the_path(self, gain: float) -> int:
        """Samples that may be under way or wait, so many times what the path holds."""
        if self._delay is None or not self._rates:
            return self._floor
        return max(self._floor, int(gain * max(self._rates) * self._delay))

    @property
    def size(self) -> int:
        """The number of samples that may be requested and not consumed, now."""
        return max(1, min(int(self._open), self.goal))

    @property
    def outstanding(self) -> int:
        return self._outstanding

    @property
    def room(self) -> int:
        return max(0, self.size - self._outstanding)

    def requested(self, count: int = 1) -> None:
        self._outstanding += count

    def taken(self, count: int = 1) -> None:
        """Samples are being worked on, and will be consumed."""
        self._working += count
        self._ahead = max(self._ahead, self._working)
        if not self._prefetch.ramp:
            self._open = self.goal

    def waited(self) -> None:
        """The trainer waits for what comes next."""
        self._waited = True

    def dropped(self) -> None:
        """A request was given up."""
        self._outstanding -= 1

    def consumed(self, count: int = 1) -> None:
        """Samples were handed to their trainer; those that were worked on first."""
        self._outstanding -= count
        self._working = max(0, self._working - count)  # not everybody tells what is taken
        waited, self._waited = self._waited, False
        self._streak = self._streak + count if waited else 0
        if self._start is _Start.GRADUAL and self._streak > self._batch:
            self._start = _Start.QUICK
        if self._probing:
            return
        if waited and self._start is _Start.QUICK:
            self._open += count
            return
        goal = self.goal
        if self._open > goal or not self._prefetch.ramp:
            self._open = goal
        else:
            self._credit += count
            steps, self._credit = divmod(self._credit, self._prefetch.ramp)
            self._open = min(goal, self._open + steps)

    def arrived(self, now: float, took: float, size: int) -> None:
        """A sample of that many bytes came at ``now``, ``took`` seconds after it was requested."""
        self._size = size if not self._size else self._size + (size - self._size) / 64
        self._least = min(self._least, took)
        self._smooth += (took - self._smooth) / 32
        if self._smooth > QUEUED * self._least + QUEUED_S:
            self._start = _Start.OVER
        if self._round is None:
            # A probe measures nothing before what was asked for too much has come.
            if not self._probing or self._outstanding <= self.size:
                self._round = now, 0, 0.0
            return
        began, count, total = self._round
        if self._probing and now - took < began:
            return  # it was in the queue
        count, total = count + 1, total + took
        self._round = began, count, total
        least = PROBE_ARRIVALS if self._probing else ROUND_ARRIVALS
        if count >= least and now - began >= max(ROUND_S, ROUND_DELAYS * total / count):
            self._round = now, 0, 0.0
            if self._probing:
                self._probed(now, total / count)
            else:
                self._measured(now, count / (now - began), total / count)

    def _measured(self, now: float, rate: float, delay: float) -> None:
        self._rates.append(rate)
        self._delay = delay if self._delay is None else min(self._delay, delay)
        self._fresh = delay if self._fresh is None else min(self._fresh, delay)
        if self._probe_due is None:
            self._probe_due = now + PROBE_EVERY_S
        elif now >= self._probe_due and self._prefetch.window is None:
            self._probing, self._round = True, None

    def _probed(self, now: float, delay: float) -> None:
        """The old minimum is forgotten: what was measured since the last probe stands, and this one's."""
        self._probing, self._probe_due = False, now + PROBE_EVERY_S
        self._delay = delay if self._fresh is None else min(self._fresh, delay)
        self._fresh = None
        self._open = min(self._open, self._on_the_path(1.0) + self._ahead)
