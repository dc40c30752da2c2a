"""Measurements of samples by lanes, and the numbers that follow from them. Methods that write want the lock held."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.sched import ledger_layout as W
from headrace.sched.ledger_layout import Dims, Words


class Costs(NamedTuple):
    """Costs of the samples that were finished."""

    histogram: list[int]
    finished: int
    slow: int
    """The finished samples that took longer than the threshold in force."""
    returns: int
    """Lanes that came back from aside."""
    excess: int
    """Nanoseconds that these had been there, in all."""


class Gauges:
    """The gauges of a run."""

    def __init__(self, words: Words, dims: Dims) -> None:
        self._w, self._dims = words, dims

    @property
    def threshold(self) -> int:
        """Nanoseconds after which a sample counts as slow; 0 while unknown."""
        return self._w[W.THRESHOLD]

    @threshold.setter
    def threshold(self, cost: int) -> None:
        self._w[W.THRESHOLD] = cost

    @property
    def limit(self) -> int:
        """Lanes that may take tickets at once."""
        return self._w[W.LIMIT]

    @limit.setter
    def limit(self, lanes: int) -> None:
        self._w[W.LIMIT] = lanes

    @property
    def vacant(self) -> int:
        """Places of lanes that nobody has."""
        return self._w[W.LIMIT] - self._w[W.FOREGROUND]

    @property
    def generation(self) -> int:
        """A count of epochs, and of each time that one is begun again."""
        return self._w[W.GENERATION]

    def name_run(self, number: int) -> None:
        """Set the number that the trace has for the iteration's first epoch."""
        self._w[W.RUN] = number

    def costs(self) -> Costs:
        w = self._w
        histogram = w[W.HISTOGRAM : W.HISTOGRAM + W.BINS].tolist()
        return Costs(histogram, w[W.FINISHED], w[W.SLOW], w[W.RETURNS], w[W.EXCESS])

    def counts(self) -> tuple[int, int]:
        """Samples finished, and the slow ones among them."""
        return self._w[W.FINISHED], self._w[W.SLOW]

    def restart_counts(self) -> None:
        """Count samples finished and slow ones from 0 again."""
        self._w[W.FINISHED] = self._w[W.SLOW] = 0

    def restart_returns(self) -> None:
        """Count lanes that come back from aside from 0 again."""
        self._w[W.RETURNS] = self._w[W.EXCESS] = 0

    def fade(self, histogram: Sequence[int]) -> None:
        """Have old costs count for less."""
        for cost_bin, count in enumerate(histogram):
            self._w[W.HISTOGRAM + cost_bin] = count

    def take_handoffs(self) -> int:
        """Lanes that were put aside since the last call."""
        found, self._w[W.HANDOFFS] = self._w[W.HANDOFFS], 0
        return found

    def accounts(self, operations: int) -> list[list[int]]:
        """The costs of so many operations, lane by lane: see ``headrace.plan.operation_costs``."""
        found = []
        for lane in range(self._w[W.LANES]):
            first = self._dims.account(lane)
            found.append(self._w[first : first + (operations + 1) * W.COSTS].tolist())
        return found

    def put_aside_at(self, operation: int) -> int:
        """Lanes put aside while they were at this operation."""
        return self._w[W.ASIDE_AT + operation]
