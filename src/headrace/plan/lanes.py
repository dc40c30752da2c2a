"""Number of lanes: two policies that turn what was observed over a period into a number. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from headrace.core.options import LanesRule

SPARE = 0.2
"""Lanes beyond those that would fill the cores if none were ever late, at most."""


def fullness(lanes: int, running: float, queued: float, cores: float) -> float:
    """The share of time in which ``lanes`` needed nothing but a core, 0 to 1; more where ranks leave some idle.

    Where that is all the time, further ones could only take from each other, from other ranks, or from whoever else
    uses the machine, however little of it these get.
    """
    return max(running / cores, (running + queued) / max(lanes, cores))


@dataclass(frozen=True, slots=True)
class LaneRates:
    """Rates over a period of a run."""

    lanes: int
    """Lanes that were allowed to work."""
    rate: float
    """Samples finished per second."""
    waited: float
    """Share of the period that the trainer was blocked, 0 to 1."""
    occupancy: float
    """Batches ready when the trainer came, over those that may be outstanding, 0 to 1."""
    running: float
    """Cores that the workers ran on."""
    queued: float
    """Cores that they would have run on besides, had they got them."""
    cores: float
    """Cores that this process may use."""
    affordable: int
    """Lanes that memory allows."""
    aside: float = 0.0
    """Workers that were busy with slow samples beside those lanes."""

    @property
    def cpu(self) -> float:
        return min(1.0, fullness(self.lanes, self.running, self.queued, self.cores))

    @property
    def filling(self) -> int:
        """Lanes that would keep all cores busy, with some to spare where samples wait, since they do not take turns."""
        busy = max(self.running, self.lanes + self.aside - self.queued)  # those that did not just want a core
        share = max(self.running, 1e-3) / busy
        spare = 1 + SPARE * (1 - share)
        return max(1, ceil(spare * (self.cores / share - self.aside) - 0.05))

    @property
    def demanded(self) -> int:
        """Lanes with which the trainer would not wait, if each brings as much as these did."""
        return ceil(self.lanes / max(1 - self.waited, 1e-3) - 0.05)


class QueueFormula:
    """MinatoLoader's worker scheduler (its Formulas 1 and 2): queue occupancy and CPU use, clipped to two lanes a step.

    It adds lanes while the CPU is busy, whether or not that helps; kept for comparison.
    """

    def __init__(self, most: int, *, alpha: float = 2.0, beta: float = 2.0, busy: float = 0.7) -> None:
        """``most``: lanes at most; ``busy``: the CPU use above which lanes are added."""
        self._most, self._alpha, self._beta, self._busy = most, alpha, beta, busy

    def lanes(self, observed: LaneRates) -> int:
        """The number of lanes for the next period."""
        change = self._alpha * (1 - observed.occupancy) + self._beta * (observed.cpu - self._busy)
        step = round(max(-2.0, min(2.0, change)))
        return max(1, min(self._most, observed.affordable, observed.lanes + step))


class Climb:
    """Adds lanes while the trainer waits and the measured rate rises with them; takes back what did not pay.

    From what the lanes used of the cores follows how many would fill them, so the first step is the whole way. The rate
    that it brought tells how many of them were of use; the others are taken back. A step that did not pay is not tried
    again for a while, then as a small one, and each time later, so a settled run stays settled. Lanes are given up one
    by one when the trainer never waits and batches pile up (where one had to be taken back, the next is given up
    later), and all at once where the cores turn out to be full with fewer.
    """

    GAIN = 0.04
    """A step must raise the rate by this much, or it is taken back; one down must not lower it by as much."""
    WAITING = 0.05
    IDLE = 0.01
    BUSY = 0.92
    """Cores this busy have nothing left for another lane."""
    MARGIN = 1.2
    """Times the lanes that were of use, which are kept."""
    LEAP = 8
    """Times as many lanes, in one step; with more lanes than cores, twice as many: each is a process, wanted or not."""
    FREE = 0.7
    """Cores busier than this leave no room for a large step."""
    PATIENCE = 64
    """Periods between two tries of a step that did not pay, at most."""

    def __init__(self, most: int) -> None:
        """``most``: lanes at most."""
        self._most = most
        self._before: LaneRates | None = None  # the period before the step that is being tried
        self._rest = 0
        self._patience = 4
        self._calm = 0
        self._caution = 8  # calm periods before a lane is given up
        self._given_up = 0  # lanes left when one was, last

    def lanes(self, observed: LaneRates) -> int:
        """The number of lanes for the next period."""
        most = min(self._most, observed.affordable)
        before, self._before = self._before, None
        if observed.lanes > most:
            return max(1, most)
        if before is not None:
            judged = self._judged(before, observed)
            if judged != observed.lanes:
                return judged
        if self._rest > 0:
            self._rest -= 1
            return observed.lanes
        self._calm = self._calm + 1 if observed.waited < self.IDLE and observed.occupancy > 0.8 else 0
        if observed.waited > self.WAITING:
            return self._for_a_trainer_who_waits(observed, most)
        if self._calm >= self._caution and observed.lanes > 1:
            self._calm, self._given_up = 0, observed.lanes - 1
            return self._given_up
        return observed.lanes

    def _for_a_trainer_who_waits(self, observed: LaneRates, most: int) -> int:
        if observed.cpu < self.BUSY and observed.lanes < most:
            if observed.lanes == self._given_up:
                self._caution, self._given_up = min(4 * self.PATIENCE, 2 * self._caution), 0
            self._before = observed
            small = observed.lanes + max(1, observed.lanes // 4)
            leaps = self._patience == 4 and observed.cpu < self.FREE
            far = max(2 * observed.lanes, ceil(self.LEAP * min(observed.lanes, observed.cores)))
            large = min(observed.filling, observed.demanded, far) if leaps else small
            return min(most, max(small, large))
        if observed.cpu >= self.BUSY and observed.filling < observed.lanes / 2:
            self._before = observed
            return observed.filling
        return observed.lanes

    def _judged(self, before: LaneRates, now: LaneRates) -> int:
        """The number of lanes to go on with after the step from ``before`` to ``now``."""
        if now.lanes < before.lanes:
            if now.rate >= before.rate * (1 - self.GAIN):
                return now.lanes
            self._wait_longer()
            return before.lanes
        gain = now.rate / max(before.rate, 1e-9)
        if gain < 1 + self.GAIN and now.waited > self.WAITING:
            self._wait_longer()
            return before.lanes
        of_use = ceil(before.lanes * gain * self.MARGIN)
        if of_use < 0.75 * now.lanes and now.waited > self.WAITING:
            self._wait_longer()
            self._before = now
            return of_use
        self._patience = 4
        return now.lanes

    def _wait_longer(self) -> None:
        self._rest, self._patience = self._patience, min(self.PATIENCE, 2 * self._patience)


RULES: Mapping[LanesRule, type[Climb | QueueFormula]] = {"climb": Climb, "formula": QueueFormula}
"""By name. Each remembers what it needs of earlier periods."""
