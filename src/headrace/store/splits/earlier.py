"""Two divisions compared, and rows kept where an earlier one has them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.errors import SplitError
from headrace.store.splits.classes import Coded
from headrace.store.splits.frame import Ints
from headrace.store.splits.result import Splits

FREE = -1
"""The part of a row that an earlier division does not have."""
MOST_MOVES = 4


@dataclass(frozen=True)
class Changes:
    """The differences between one division of samples and an earlier one."""

    both: int
    """Samples that are in both."""
    moved: Mapping[tuple[str, str], int]
    """How many of them changed sides, by the part they were in and the one they are in."""
    new: int
    went: list[str]
    """Keys that only the earlier one has."""

    def told(self) -> str:
        """The numbers, in words."""
        number = sum(self.moved.values())
        every = sorted(self.moved.items(), key=lambda pair: (-pair[1], pair[0]))
        shown = ", ".join(f"{count} from {before} to {now}" for (before, now), count in every[:MOST_MOVES])
        found = f"{number} of {self.both} samples would change sides" + (f" ({shown})" if shown else "")
        return found + f", {self.new} would be new, {len(self.went)} would go"


def changes(before: Splits, now: Splits) -> Changes:
    """The changes between two divisions, sample by sample."""
    was = {key: before.names[part] for key, part in zip(before.every, before.parts.tolist(), strict=True)}
    moved: Counter[tuple[str, str]] = Counter()
    both = 0
    for key, part in zip(now.every, now.parts.tolist(), strict=True):
        earlier = was.pop(key, None)
        if earlier is None:
            continue
        both += 1
        if earlier != now.names[part]:
            moved[earlier, now.names[part]] += 1
    return Changes(both, dict(moved), len(now) - both, list(was))


@dataclass(frozen=True)
class KeptPlaces:
    """The part and the fold that an earlier division gave to each row, ``FREE`` where none."""

    parts: Ints
    folds: Ints
    went: list[str]
    """Keys of rows that are not there any more."""

    @classmethod
    def of(cls, before: Splits | None, keys: Sequence[str], names: Sequence[str], folds: int | None) -> "KeptPlaces":
        """The places that are kept of a division for the rows with these keys. Raises ``SplitError`` where that
        cannot be.
        """
        nowhere = np.full(len(keys), FREE, np.int64)
        if before is None:
            return cls(nowhere, nowhere, [])
        lost = [name for name in before.names if name not in names]
        if lost:
            raise SplitError(f"keep: fractions do not name {lost[0]!r}, and the rows that are there would lose it")
        if folds is not None and before.folds is not None and folds != before.facts["folds"]:
            raise SplitError(f"keep: there are {before.facts['folds']} folds, and {folds} are asked for")
        place = {key: number for number, key in enumerate(before.every)}
        rows = np.array([place.pop(key, FREE) for key in keys], np.int64)
        if not (rows >= 0).any():
            raise SplitError(f"keep: none of the {len(before)} samples of the earlier split is among the rows")
        number = np.array([names.index(name) for name in before.names], np.int64)
        parts = np.where(rows < 0, FREE, number[before.parts[rows]])
        fold = np.where(rows < 0, FREE, before.folds[rows]) if before.folds is not None else nowhere
        return cls(parts, fold, list(place))

    def facts(self) -> dict[str, Any]:
        """The numbers of rows that were kept and are new, and those that went: JSON."""
        rows = int((self.parts >= 0).sum())
        return {"kept": rows, "new": len(self.parts) - rows, "went": self.went}


def of_groups(rows: Ints, groups: Ints, named: Coded | None) -> Ints:
    """The place of each group, of those that its rows are kept in. Raises ``SplitError`` where there are two."""
    found = np.full(int(groups.max()) + 1, FREE, np.int64)
    held = rows >= 0
    found[groups[held]] = rows[held]
    astray = np.flatnonzero(held & (found[groups] != rows))
    if len(astray):
        name = "" if named is None else f" {named.names[int(named.codes[astray[0]])]!r}"
        raise SplitError(f"keep: the rows of the group{name} are on two sides there; group_by was another, or none")
    return found
