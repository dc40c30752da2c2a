"""Policies that a cache is compared with: published ones, and what none can exceed. Pure."""

from typing import Protocol

import numpy as np

from headrace.cache import policies
from headrace.cache.policies import NEVER, Policy, Standing, Values


class Simulated(Policy, Protocol):
    """What a simulation can be of, beside what a real cache does."""

    alone: bool
    """Misses are exchanged where no other job is there, too, who might bring what was put off."""
    drops: bool
    """What is worth nothing any more is dropped at once, not when something better comes."""
    refills: bool
    """Its place is taken at once by random samples, read for nobody in particular."""


class Need(policies.Need):
    """The real one."""

    alone = drops = refills = False


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
