"""Requests for a division of rows: what the user said, and for the rest what an earlier division was told. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import SplitError
from headrace.store.splits.balance import ORIGINAL, Balance
from headrace.store.splits.shares import Shares

WHOLE = "all"
"""The name of the only part where no fractions are given."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_FOLD = re.compile(r"fold\d*")


@dataclass(frozen=True)
class SplitRequest:
    """The request for a division, every value checked."""

    fractions: dict[str, float]
    group_by: str | None
    stratify: tuple[str, ...]
    balance: Balance
    where: str | None
    folds: int | None
    seed: int

    def facts(self) -> dict[str, Any]:
        """The same, as a split file holds it."""
        return vars(self) | {"stratify": list(self.stratify)}


def request(
    said: Mapping[str, Any], before: Mapping[str, Any] | None, stratify: str | Sequence[str] | None
) -> SplitRequest:
    """The request of what was said, where None is nothing; what is not said is as it was before, where that is given.

    Raises ``SplitError`` for what has no meaning.
    """
    given = {**said, "stratify": [stratify] if isinstance(stratify, str) else stratify}
    if before is not None:
        given |= {name: before.get(name) for name, value in given.items() if value is None}
        _check_kinds(given)
    fractions, folds = given["fractions"], given["folds"]
    if fractions is None and folds is None:
        raise SplitError("into what? give fractions, such as train=0.8,test=0.2, or a number of folds")
    named = {WHOLE: 1.0} if fractions is None else {str(name): float(share) for name, share in fractions.items()}
    for name, share in named.items():
        if not _NAME.fullmatch(name) or _FOLD.fullmatch(name):
            raise SplitError(f"fractions: {name!r} cannot name a split: letters, digits, - and _, and not fold1")
        if not 0 < share <= 1:
            raise SplitError(f"fractions: {name}={share:g} is no share of the whole, which is 1")
    if not named:
        raise SplitError("fractions: there are none")
    Shares.of(list(named.values()))
    if folds is not None and folds < 2:
        raise SplitError(f"folds: {folds} is too few, two are the least")
    columns = tuple(given["stratify"] or ())
    balance = ORIGINAL if given["balance"] is None else given["balance"]
    if balance != ORIGINAL and not columns:
        raise SplitError("balance needs stratify: the column that holds the classes")
    return SplitRequest(named, given["group_by"], columns, balance, given["where"], folds, int(given["seed"] or 0))


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Raises ``SplitError`` where a file says what no division was told."""
    shares = given["fractions"]
    kinds: dict[str, Any] = {
        "fractions": Mapping,
        "group_by": str,
        "stratify": (list, tuple),
        "balance": (str, Mapping),
        "where": str,
        "folds": int,
        "seed": int,
    }
    wrong = [name for name, kind in kinds.items() if given[name] is not None and not isinstance(given[name], kind)]
    if isinstance(shares, Mapping) and not {type(share) for share in shares.values()} <= {int, float}:
        wrong.append("fractions")
    if isinstance(given["stratify"], (list, tuple)) and not all(isinstance(name, str) for name in given["stratify"]):
        wrong.append("stratify")
    if wrong:
        raise SplitError(f"keep: the earlier split does not say its {wrong[0]} in a way that can be followed: give it")
