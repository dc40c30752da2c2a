"""How many lanes: two policies that turn what was observed over a period into a number. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.core.options import LanesRule


@dataclass(frozen=True, slots=True)
class Observed:
    """One period of a run."""

    lanes: int
    """Lanes that were allowed to work."""
    rate: float
    """Samples finished per second."""
    waited: float
    """Share of the period that the consumer was blocked, 0 to 1."""
    occupancy: float
    """Batches ready when the consumer came, over those that may be outstanding, 0 to 1."""
    cpu: float
    """Use that the lanes made of the cores this process may use, or would have made had they got them, 0 to 1."""
    affordable: int
    """Lanes that memory allows."""


class LanePolicy(Protocol):
    """Remembers what it needs of earlier periods."""

    def lanes(self, observed: Observed) -> int:
        """Lanes for the next period."""


class QueueFormula:
    """MinatoLoader's worker scheduler (its Formulas 1 and 2): queue occupancy and CPU use, clipped to two lanes a step.

    It adds lanes while the CPU is busy, whether or not that helps; kept for comparison.
    """

    def __init__(self, most: int, *, alpha: float = 2.0, beta: float = 2.0, busy: float = 0.7) -> None:
        """``most``: lanes at most; ``busy``: the CPU use above which lanes are added."""
        self._most, self._alpha, self._beta, self._busy = most, alpha, beta, busy

    def lanes(self, observed: Observed) -> int:
        """See ``LanePolicy``."""
        change = self._alpha * (1 - observed.occupancy) + self._beta * (observed.cpu - self._busy)
        step = round(max(-2.0, min(2.0, change)))
        return max(1, min(self._most, observed.affordable, observed.lanes + step))


class Climb:
    """Adds lanes while the consumer waits and the measured rate rises with them; takes back what did not pay.

    A step that did not pay is not tried again for a while, and for longer each time, so a settled run stays settled.
    Lanes are given up one by one when the consumer never waits and batches pile up; where one had to be taken back,
    the next is given up later.
    """

    GAIN = 0.04
    """A step must raise the rate by this much, or it is taken back."""
    WAITING = 0.05
    IDLE = 0.01
    BUSY = 0.92
    """Cores this busy have nothing left for another lane."""
    PATIENCE = 64
    """Periods between two tries of a step that did not pay, at most."""

    def __init__(self, most: int) -> None:
        """``most``: lanes at most."""
        self._most = most
        self._before: Observed | None = None  # the period before the step that is being tried
        self._rest = 0
        self._patience = 4
        self._calm = 0
        self._caution = 8  # calm periods before a lane is given up
        self._given_up = 0  # lanes left when one was, last

    def lanes(self, observed: Observed) -> int:
        """See ``LanePolicy``."""
        most = min(self._most, observed.affordable)
        if observed.lanes > most:
            self._before = None
            return max(1, most)
        if self._before is not None:
            before, self._before = self._before, None
            if observed.rate < before.rate * (1 + self.GAIN):
                self._rest, self._patience = self._patience, min(self.PATIENCE, 2 * self._patience)
                return before.lanes
            self._patience = 4
        if self._rest > 0:
            self._rest -= 1
            return observed.lanes
        self._calm = self._calm + 1 if observed.waited < self.IDLE and observed.occupancy > 0.8 else 0
        if observed.waited > self.WAITING and observed.cpu < self.BUSY and observed.lanes < most:
            if observed.lanes == self._given_up:
                self._caution, self._given_up = min(4 * self.PATIENCE, 2 * self._caution), 0
            self._before = observed
            return min(most, observed.lanes + max(1, observed.lanes // 4))
        if self._calm >= self._caution and observed.lanes > 1:
            self._calm, self._given_up = 0, observed.lanes - 1
            return self._given_up
        return observed.lanes


RULES: Mapping[LanesRule, Callable[[int], LanePolicy]] = {"climb": Climb, "formula": QueueFormula}
"""By name; called with the number of lanes at most."""
