"""Shares of a whole as exact numbers, and how many of n things each of them gets. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.core.errors import SplitError


@dataclass(frozen=True)
class Shares:
    """``weights[s] / whole`` is the share of part s; the weights are integers and add up to ``whole``."""

    weights: tuple[int, ...]
    whole: int

    @classmethod
    def of(cls, fractions: Sequence[float]) -> "Shares":
        """One part per fraction, and a last one for what they leave."""
        exact = [Fraction(repr(float(fraction))) for fraction in fractions]
        rest = 1 - sum(exact, Fraction())
        if abs(rest) < Fraction(1, 10**9):  # thirds and the like
            exact[exact.index(max(exact))] += rest
            rest = Fraction()
        if rest < 0:
            raise SplitError(f"fractions add up to {float(1 - rest):g}, which is more than 1")
        exact.append(rest)
        whole = math.lcm(*(share.denominator for share in exact))
        return cls(tuple(int(share * whole) for share in exact), whole)

    @classmethod
    def even(cls, parts: int) -> "Shares":
        """Equal parts."""
        return cls((1,) * parts, parts)

    def __len__(self) -> int:
        return len(self.weights)


def apportioned(sizes: Sequence[int], shares: Shares) -> list[list[int]]:
    """How many of each class go to each part, every class divided up whole.

    Each number is the exact share rounded up or down, and what rounding took from a part in one class it gets back in
    the next: the totals of the parts are right too, however small the classes.
    """
    owed = [0] * len(shares)
    counts = []
    for size in sizes:
        floors = [size * weight // shares.whole for weight in shares.weights]
        rests = [size * weight % shares.whole for weight in shares.weights]
        left = size - sum(floors)
        candidates = [part for part, rest in enumerate(rests) if rest]
        lucky = set(sorted(candidates, key=lambda part: (-(rests[part] + owed[part]), part))[:left])
        for part, rest in enumerate(rests):
            owed[part] += rest - (shares.whole if part in lucky else 0)
        counts.append([floor + (part in lucky) for part, floor in enumerate(floors)])
    return counts
