"""The outcome of a division: which sample is in which part."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.errors import SplitError
from headrace.store.splits.frame import Bools, Ints
from headrace.store.splits.split_report import concerns

_FOLD = re.compile(r"fold(\d+)\.(train|val)")


@dataclass(frozen=True, eq=False, repr=False)
class Splits:
    """Samples by part. Samples that are in none are not here.

    Where a name is asked for, ``"train"`` is a part, ``"train+val"`` are several, and with folds ``"fold0.val"`` is a
    fold and ``"fold0.train"`` the other folds.
    """

    names: tuple[str, ...]
    every: list[str]
    """The keys of all samples, in the order of the rows they were made from."""
    parts: Ints
    """For each of them, the number of its part in ``names``."""
    folds: Ints | None
    """Its fold; -1 for samples that are in none."""
    labels: list[Any] | None
    """As they were when it was made; None for what was read from a file. A dataset has those of its store."""
    origin: Ints | None
    """The row of the frame it was made from; None for what was read from a file."""
    facts: Mapping[str, Any]
    """JSON: seed, fractions, filter, store, counts and the rest of how it was made."""

    def __len__(self) -> int:
        return len(self.every)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={int((self.parts == part).sum())}" for part, name in enumerate(self.names))
        folds = "" if self.folds is None else f", folds={self.facts['folds']}"
        return f"Splits({sizes}{folds})"

    def keys(self, name: str) -> list[str]:
        """The keys of the samples in a part."""
        return [self.every[place] for place in np.flatnonzero(self._in(name)).tolist()]

    def rows(self, name: str) -> Ints:
        """The rows of the samples of a part in the frame that was divided: ``frame.iloc[splits.rows("train")]``."""
        if self.origin is None:
            raise SplitError("a split file does not know the frame it was made from; use keys()")
        return self.origin[self._in(name)]

    def concerns(self) -> list[str]:
        """Warnings on what came out other than was asked for, one sentence each: an empty part, a class that is
        missing in one.
        """
        return concerns(self.facts)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write a Parquet file, or JSON where ``path`` ends in ``.json``; ``force``: also where there is one.

        Raises ``SplitError``; ``MissingDriver`` where Parquet is asked for and pyarrow is not there.
        """
        from headrace.store.splits.split_file import write  # noqa: PLC0415  (the file knows the value, not the other way)

        write(self, path, force=force)

    def _in(self, name: str) -> Bools:
        chosen = np.zeros(len(self.every), np.bool_)
        for each in name.split("+"):
            chosen |= self._one(each.strip())
        return chosen

    def _one(self, name: str) -> Bools:
        if name in self.names:
            return np.asarray(self.parts == self.names.index(name), np.bool_)
        match = _FOLD.fullmatch(name)
        number = int(self.facts.get("folds") or 0)
        if match is None or self.folds is None or int(match[1]) >= number:
            folds = f", fold0.train, fold0.val to fold{number - 1}.val" if self.folds is not None else ""
            raise SplitError(f"there is no split {name!r}; there are {', '.join(self.names)}{folds}")
        fold = int(match[1])
        return np.asarray(
            self.folds == fold if match[2] == "val" else (self.folds >= 0) & (self.folds != fold), np.bool_
        )
