"""Who sits at the ledger of a shared cache, and who of them counts. Nothing is stored here: whoever acts on it holds
the lock, whoever only looks need not.
"""

from typing import NamedTuple

import numpy as np

from headrace.cache import words as W
from headrace.cache.words import Array, Dims


class Crowd(NamedTuple):
    """Who counts at the moment."""

    live: int
    """A bit for each seat."""
    jobs: int
    """The jobs that these seats are ranks of."""
    kin: dict[int, int]
    """Of each job with a seat, a bit for each of its ranks'."""
    due: Array | None = None
    """For all samples: when a single job asks for it next, where it knows."""


class Roster:
    """All seats. ``since``: a rank that was not heard of after that is silent."""

    def __init__(self, view: Array, dims: Dims) -> None:
        """A view of the ledger's words: nothing is remembered here."""
        self._seats = view[dims.seats : dims.seats + W.SEATS * W.SEAT].reshape(W.SEATS, W.SEAT)

    def _taken(self) -> Array:
        taken: Array = self._seats[:, W.J_NAME] != 0
        return taken

    def _heard(self, since: int) -> Array:
        heard: Array = self._taken() & (self._seats[:, W.J_BEAT] > since)
        return heard

    def heard(self, since: int) -> Array:
        """The words of each seat whose rank is not silent."""
        return self._seats[self._heard(since)]

    def anybody(self, since: int, besides: int) -> bool:
        """Whether another rank is not silent."""
        return bool((self._heard(since) & (np.arange(W.SEATS) != besides)).any())

    def silent(self, since: int) -> list[int]:
        """The seats of those who are."""
        return list(np.flatnonzero(self._taken() & ~self._heard(since)).tolist())

    def vacant(self, since: int) -> int | None:
        """A seat that is free, or that of who was silent for longest; None if nobody is."""
        free = np.flatnonzero(~self._taken())
        if len(free):
            return int(free[0])
        oldest = int(np.argmin(self._seats[:, W.J_BEAT]))
        return oldest if int(self._seats[oldest, W.J_BEAT]) <= since else None

    def crowd(self, since: int, due: Array | None) -> Crowd:
        """Those who are not silent and are in an epoch."""
        taken = self._taken()
        counts = taken & (self._seats[:, W.J_STATE] == W.READY) & (self._seats[:, W.J_BEAT] > since)
        kin: dict[int, int] = {}
        for number in np.flatnonzero(taken).tolist():
            group = int(self._seats[number, W.J_GROUP])
            kin[group] = kin.get(group, 0) | 1 << number
        live = sum(1 << number for number in np.flatnonzero(counts).tolist())
        return Crowd(live, len(set(self._seats[counts, W.J_GROUP].tolist())), kin, due)
