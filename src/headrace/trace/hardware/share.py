"""How sure a share is that was estimated from samples."""

from math import sqrt
from typing import NamedTuple

Z = 1.96
"""Of the normal distribution: 95 % lie within."""


class MeasuredShare(NamedTuple):
    """A part of a whole and the 95 % interval it was measured to lie in."""

    value: float
    low: float
    high: float


def share(part: int, whole: int) -> MeasuredShare:
    """``part`` of ``whole`` samples: Wilson's interval, which is right for few samples and for all or none too."""
    if whole == 0:
        return MeasuredShare(0.0, 0.0, 1.0)
    p = part / whole
    middle = (p + Z * Z / (2 * whole)) / (1 + Z * Z / whole)
    reach = Z / (1 + Z * Z / whole) * sqrt(p * (1 - p) / whole + Z * Z / (4 * whole * whole))
    return MeasuredShare(
        p, 0.0 if part == 0 else max(0.0, middle - reach), 1.0 if part == whole else min(1.0, middle + reach)
    )
