"""Rows of metadata divided into named parts: filter, assign, balance, fold. Pure."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SplitError
from headrace.store.splits.balance import ORIGINAL, Balance, kept, thinned, wanted
from headrace.store.splits.classes import Coded, classes_of, groups_of
from headrace.store.splits.filter import holds
from headrace.store.splits.frame import OTHER, Frame, Ints, framed
from headrace.store.splits.groups import Cells, assigned
from headrace.store.splits.report import counted, empty
from headrace.store.splits.result import Splits
from headrace.store.splits.shares import Shares, apportioned

WHOLE = "all"
"""The name of the only part where no fractions are given."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_FOLD = re.compile(r"fold\d*")


def split(  # noqa: PLR0913  (an option of the command each)
    frame: Any,
    fractions: Mapping[str, float] | None = None,
    *,
    group_by: str | None = None,
    stratify: str | Sequence[str] | None = None,
    balance: Balance = ORIGINAL,
    where: str | None = None,
    folds: int | None = None,
    seed: int = 0,
    allow_empty: bool = False,
) -> Splits:
    """Divide samples into named parts by their metadata, one row per sample.

    ``frame``: a pandas DataFrame, a pyarrow Table or a dict of columns. The column ``key`` names the samples, or
    ``id``, or a DataFrame's index, or else their numbers. ``fractions``: the share of each part; what they leave of 1
    is left out. Rows with the same value of ``group_by`` never come into different parts. The ratios of the classes in
    ``stratify`` (a column, or several together) are the same in every part as far as groups allow; ``balance`` sets
    them instead, by leaving rows out: ``"uniform"``, or a weight for each class, or one of these by part. ``where``
    keeps the rows for which the condition holds. ``folds`` divides the first part once more, for cross-validation.
    A part or a fold that would be empty is an error, unless ``allow_empty``.

    The result depends on the rows and the seed, not on the order of the rows, the machine or the Python. Raises
    ``SplitError``, or ``FilterError`` for the condition.
    """
    request = _request(fractions, group_by, stratify, balance, folds, seed)
    whole = framed(frame)
    keys = _keys(whole)
    rows = np.arange(whole.rows)
    if where is not None:
        rows = np.flatnonzero(holds(where, whole))
    if not len(rows):
        raise SplitError("no row is left to divide" if where is not None else "there are no rows to divide")
    chosen = whole.taken(rows)
    table = _Table(chosen, [keys[row] for row in rows.tolist()], request)
    parts = table.parted(Shares.of(list(request.fractions.values())))
    parts[parts == len(request.fractions)] = -1  # what fractions leave of the whole is the last share
    parts = table.balanced(parts)
    fold = table.folded(parts)
    counts = counted(parts, fold, table.classes, table.groups, request.fractions, request.folds or 0)
    if not allow_empty and (lacking := empty(counts)):
        raise SplitError(f"{lacking[0]}. Ask for fewer or larger ones, or say allow_empty=True (--allow-empty)")
    there = np.flatnonzero(parts >= 0)
    label = chosen.columns.get("label")
    return Splits(
        names=tuple(request.fractions),
        every=[table.keys[row] for row in there.tolist()],
        parts=parts[there],
        folds=None if fold is None else fold[there],
        labels=None if label is None or label.kind == OTHER else label.taken(there).listed(),
        origin=rows[there],
        facts={
            **request.facts(),
            "where": where,
            "rows": whole.rows,
            "left_out": whole.rows - len(there),
            "counts": counts,
        },
    )


@dataclass(frozen=True)
class _SplitRequest:
    fractions: dict[str, float]
    group_by: str | None
    stratify: tuple[str, ...]
    balance: Balance
    folds: int | None
    seed: int

    def facts(self) -> dict[str, Any]:
        return vars(self) | {"stratify": list(self.stratify)}


def _request(
    fractions: Mapping[str, float] | None,
    group_by: str | None,
    stratify: str | Sequence[str] | None,
    balance: Balance,
    folds: int | None,
    seed: int,
) -> _SplitRequest:
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
    columns = (stratify,) if isinstance(stratify, str) else tuple(stratify or ())
    if balance != ORIGINAL and not columns:
        raise SplitError("balance needs stratify: the column that holds the classes")
    return _SplitRequest(named, group_by, columns, balance, folds, int(seed))


def _keys(frame: Frame) -> list[str]:
    name = next((name for name in ("key", "id") if name in frame.columns), None)
    if name is None:
        return [str(row) for row in range(frame.rows)]
    column = frame.columns[name]
    if column.kind == OTHER or column.null.any():
        what = column.kind if column.kind == OTHER else "no value in some rows"
        raise SplitError(f"column {name!r} names the samples, and has {what}")
    keys = [str(key) for key in column.values.tolist()]
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise SplitError(f"column {name!r} names the samples, and {twice!r} is there twice")
    return keys


class _Table:
    """The rows to be divided, their classes and groups as numbers."""

    def __init__(self, frame: Frame, keys: list[str], request: _SplitRequest) -> None:
        self.keys, self.request = keys, request
        self.classes = classes_of(frame, request.stratify)
        self.groups: Coded | None = None if request.group_by is None else groups_of(frame, request.group_by)
        self.wanted = wanted(request.balance, list(request.fractions), self.classes.names)
        self.ranks = ranks(keys, request.seed, "rows")

    def parted(self, shares: Shares, rows: Ints | None = None, purpose: str = "groups") -> Ints:
        """The part of each row, or of each of the given rows."""
        classes = self.classes.codes if rows is None else self.classes.codes[rows]
        if self.groups is None:
            return _without_groups(classes, self.ranks if rows is None else self.ranks[rows], shares)
        every = self.groups.codes if rows is None else self.groups.codes[rows]
        used, groups = np.unique(every, return_inverse=True)
        order = ranks((self.groups.names[group] for group in used.tolist()), self.request.seed, purpose)
        return assigned(Cells.of(groups, np.unique(classes, return_inverse=True)[1]), order, shares)[groups]

    def balanced(self, parts: Ints) -> Ints:
        """Rows that the wanted ratios of the classes leave out are -1."""
        result = parts.copy()
        groups = np.zeros_like(parts) if self.groups is None else self.groups.codes
        for part, weights in enumerate(self.wanted):
            if weights is None:
                continue
            rows = np.flatnonzero(parts == part)
            classes = self.classes.codes[rows]
            stay = kept(np.bincount(classes, minlength=len(self.classes.names)).tolist(), weights)
            result[rows] = -1
            for code, number in enumerate(stay):
                mine = rows[classes == code]
                if number:
                    result[thinned(mine, groups[mine], self.ranks[mine], number)] = part
        return result

    def folded(self, parts: Ints) -> Ints | None:
        """The fold of each row of the first part, -1 elsewhere."""
        if self.request.folds is None:
            return None
        folds = np.full(len(parts), -1, np.int64)
        rows = np.flatnonzero(parts == 0)
        if len(rows):
            folds[rows] = self.parted(Shares.even(self.request.folds), rows, "folds")
        return folds


def _without_groups(classes: Ints, order: Any, shares: Shares) -> Ints:
    """Every class divided by itself, row by row in the order of their ranks."""
    counts = apportioned(np.bincount(classes).tolist(), shares)
    rows = np.lexsort((order, classes))
    pattern = np.tile(np.arange(len(shares)), len(counts))
    parts = np.empty(len(classes), np.int64)
    parts[rows] = np.repeat(pattern, np.array(counts).ravel())
    return parts


def ranks(values: Iterable[str], seed: int, purpose: str) -> npt.NDArray[np.uint64]:
    """A number per value, as good as random; ``purpose`` keeps two uses of one seed apart.

    Neither the order in which rows come nor the version of any library has a part in it.
    """
    secret = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=32).digest()
    keyed = hashlib.blake2b(key=secret, digest_size=8)
    digests = bytearray()
    for value in values:
        one = keyed.copy()
        one.update(value.encode("utf-8", "surrogatepass"))
        digests += one.digest()
    return np.frombuffer(bytes(digests), "<u8")
