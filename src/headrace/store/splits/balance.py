"""Class ratios set on purpose: which rows of a part stay when its classes are to stand in given proportions. Pure."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SplitError
from headrace.store.splits.frame import Ints

ORIGINAL, UNIFORM = "original", "uniform"

Rule = str | Mapping[str, float]
"""``"original"``, ``"uniform"``, or a weight for each class."""
Balance = Rule | Mapping[str, Rule]
"""One rule for all parts, or one by the part's name; parts not named stay as they are."""

Weights = tuple[Fraction, ...] | None
"""Of the classes, in the order of their numbers; None: as it is."""


def wanted(balance: Balance, parts: Sequence[str], classes: Sequence[str]) -> list[Weights]:
    """The weights that each part is to have. Raises ``SplitError`` for what is neither a rule nor the name of a
    part or class.
    """
    if isinstance(balance, Mapping) and any(isinstance(rule, (str, Mapping)) for rule in balance.values()):
        unknown = [name for name in balance if name not in parts]
        if unknown:
            raise SplitError(f"balance: there is no split {unknown[0]!r}; there are {', '.join(parts)}")
        return [_rule(balance.get(part, ORIGINAL), classes) for part in parts]
    return [_rule(balance, classes)] * len(parts)


def _rule(rule: object, classes: Sequence[str]) -> Weights:
    if rule == ORIGINAL:
        return None
    if rule == UNIFORM:
        return (Fraction(1),) * len(classes)
    if not isinstance(rule, Mapping):
        raise SplitError(f"balance takes 'original', 'uniform' or a weight for each class, not {rule!r}")
    named = {str(name): weight for name, weight in rule.items()}
    for name, weight in named.items():
        if name not in classes:
            raise SplitError(f"balance: there is no class {name!r}; there are {_some(classes)}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise SplitError(f"balance: the weight of class {name!r} must be a number from 0, not {weight!r}")
    missing = [name for name in classes if name not in named]
    if missing:
        raise SplitError(f"balance: class {missing[0]!r} has no weight; write 0 to leave it out")
    if not any(named.values()):
        raise SplitError("balance: all weights are 0")
    # By its decimal text, 0.1 is a tenth: as a binary fraction it is not, and whole numbers would be rounded down.
    return tuple(Fraction(repr(float(named[name]))) for name in classes)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def kept(counts: Sequence[int], weights: Sequence[Fraction]) -> list[int]:
    """The number of each class that stays: as many as possible in the given proportions. Absent classes ask for
    nothing.
    """
    scales = [Fraction(count) / weight for count, weight in zip(counts, weights, strict=True) if count and weight]
    scale = min(scales, default=Fraction(0))
    return [min(count, int(scale * weight)) for count, weight in zip(counts, weights, strict=True)]


def thinned(rows: Ints, groups: Ints, ranks: npt.NDArray[np.uint64], stay: int) -> Ints:
    """``stay`` of the rows, spread evenly over their groups: each keeps its proportion to within one row.

    ``groups`` and ``ranks`` have one number per row given; ranks decide which rows of a group.
    """
    if stay >= len(rows):
        return rows
    order = np.lexsort((ranks, groups))
    offset = int(ranks.min()) % len(rows)
    picks = (np.arange(stay, dtype=np.int64) * len(rows) + offset) // stay
    return np.sort(rows[order[picks]])
