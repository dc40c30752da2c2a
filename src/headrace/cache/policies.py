"""Policies on what is worth keeping and what to fetch: a policy is functions of plain arrays. Pure.

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
    """Facts about a number of samples, one element each."""

    need: Values
    """Live jobs that have not seen it in their current epoch."""
    uses: Values
    """How often this very entry was served, to whoever made it included."""
    due: Values
    """When a single job will ask for it next, counted in samples; ``NEVER`` when that is not known."""
    jobs: int
    """Live jobs."""


def standing(need: Values, jobs: int) -> Standing:
    """The standing of samples of whose uses nothing is known but who has seen them."""
    return Standing(need, jobs - need, np.full(len(need), NEVER), jobs)


class Policy(Protocol):
    """A policy, which is pure: asked the same, it answers the same."""

    exchanges: bool
    """Misses are exchanged for cached samples that the job has not seen."""

    def worth(self, of: Standing) -> Values:
        """The worth of keeping each. An entry worth 0 is of no further use to anybody."""

    def urgency(self, of: Standing) -> Values:
        """The urgency of fetching each miss: the highest goes first. All equal: those that were drawn."""


class Need:
    """Fetch what most jobs still need, keep what most jobs still need.

    With one job this is the static cache, and samples come as they are drawn: hits first and misses last would find
    the same ones, with the storage idle at first and the cores at last. With several jobs, a sample read by one is
    there for the others.
    """

    exchanges = True

    def worth(self, of: Standing) -> Values:
        """Jobs that need it."""
        return of.need

    def urgency(self, of: Standing) -> Values:
        """Jobs that need it."""
        return of.need
