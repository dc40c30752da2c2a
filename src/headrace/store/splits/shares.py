"""Shares of a whole as exact numbers. Pure."""

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
        """Make a share for each fraction, and a last one for what they leave."""
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
        """The shares of equal parts."""
        return cls((1,) * parts, parts)

    def __len__(self) -> int:
        return len(self.weights)
