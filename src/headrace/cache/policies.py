"""What is worth keeping and what to fetch: each policy as a function of plain arrays. Pure.

A newcomer takes the place of the entry worth least, if it is worth more itself. Ties are broken at random by whoever
asks, so that what is kept stays a random choice.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.int64]
NEVER = 1 << 62
"""The time of a use that is not known to come."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of some samples, one element each."""

    need: Values
    """Live jobs that have not seen it in their current epoch."""
    uses: Values
    """How often this very entry was served, to whoever made it included."""
    due: Values
    """When a single job will ask for it next, counted in samples; ``NEVER`` when that is not known."""
    jobs: int
    """Live jobs."""


def standing(need: Values, jobs: int) -> Standing:
    """Where nothing is known of their uses but who has seen them."""
    return Standing(need, jobs - need, np.full(len(need), NEVER), jobs)


class Policy(Protocol):
    """Pure: asked the same, it answers the same."""

    exchanges: bool
    """Misses are exchanged for cached samples that the job has not seen."""
    alone: bool
    """So they are where no other job is there, who might bring what was put off."""
    drops: bool
    """What is worth nothing any more is dropped at once, not when something better comes."""
    refills: bool
    """Its place is taken at once by random samples, read for nobody in particular."""

    def worth(self, of: Standing) -> Values:
        """What keeping is worth. An entry worth 0 is of no further use to anybody."""

    def urgency(self, of: Standing) -> Values:
        """Which misses to fetch first: the highest. All equal: those that were drawn."""


class Static:
    """Fill up, keep for ever (MINIO): the hit rate is the share cached, whatever the order."""

    exchanges = alone = drops = refills = False

    def worth(self, of: Standing) -> Values:
        """All are worth the same."""
        return np.ones_like(of.need)

    def urgency(self, of: Standing) -> Values:
        """As drawn."""
        return np.zeros_like(of.need)


class Substitution(Static):
    """The same, with exchange: no gain at all, for each job needs each sample once per epoch either way."""

    exchanges = alone = True


class Opportunistic:
    """Seneca's sampling: an entry is spent when it was served as often as there are jobs.

    ``threshold``: None is the number of live jobs. ``refills``: random samples take the place of spent entries at once,
    as published; otherwise the next misses do, which needs no reads of its own.
    """

    exchanges = alone = drops = True

    def __init__(self, *, threshold: int | None = None, refills: bool = True) -> None:
        """See the class."""
        self.threshold, self.refills = threshold, refills

    def worth(self, of: Standing) -> Values:
        """Nothing once spent."""
        spent = of.uses >= (of.jobs if self.threshold is None else self.threshold)
        return np.where(spent, 0, 1)

    def urgency(self, of: Standing) -> Values:
        """As drawn."""
        return np.zeros_like(of.need)


class Need:
    """Fetch what most jobs still need, keep what most jobs still need.

    With one job this is the static cache, and samples come as they are drawn: hits first and misses last would find
    the same ones, with the storage idle at first and the cores at last. With several jobs, a sample read by one is
    there for the others.
    """

    exchanges = True
    alone = drops = refills = False

    def worth(self, of: Standing) -> Values:
        """Jobs that need it."""
        return of.need

    def urgency(self, of: Standing) -> Values:
        """Jobs that need it."""
        return of.need


class Soonest:
    """For a single job whose order is known: keep what it asks for soonest, which no other policy beats.

    Where each epoch is a permutation of the dataset nothing beats the static cache either: a hit was kept since the
    epoch before, so there are no more hits in an epoch than entries where it began. Orders that repeat samples gain.
    """

    exchanges = alone = drops = refills = False

    def worth(self, of: Standing) -> Values:
        """The sooner the more; at least 1."""
        return np.maximum(NEVER - of.due, 1)

    def urgency(self, of: Standing) -> Values:
        """As drawn."""
        return np.zeros_like(of.need)
