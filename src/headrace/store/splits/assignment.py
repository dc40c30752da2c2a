"""Rows of metadata divided into named parts: filter, assign, balance, fold."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SplitError
from headrace.store.splits.balance import Balance, kept, thinned, wanted
from headrace.store.splits.classes import Coded, classes_of, groups_of
from headrace.store.splits.cut import cut
from headrace.store.splits.earlier import KeptPlaces, of_groups
from headrace.store.splits.filter import holds
from headrace.store.splits.frame import OTHER, Frame, Ints, framed
from headrace.store.splits.grouping import Cells, assigned
from headrace.store.splits.request import SplitRequest, request
from headrace.store.splits.result import Splits
from headrace.store.splits.shares import Shares
from headrace.store.splits.split_file import read
from headrace.store.splits.split_report import counted, empty


def split(  # noqa: PLR0913  (an option of the command each)
    frame: Any,
    fractions: Mapping[str, float] | None = None,
    *,
    group_by: str | None = None,
    stratify: str | Sequence[str] | None = None,
    balance: Balance | None = None,
    where: str | None = None,
    folds: int | None = None,
    seed: int | None = None,
    keep: Splits | str | os.PathLike[str] | None = None,
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

    ``keep`` is an earlier division, or its file: rows that are in it stay in their parts and folds, new ones are placed
    where they are needed, and options that are not given are as they were; ``facts["kept"]`` tells which keys went.

    The result depends on the rows and the seed (0), not on the order of the rows, the machine or the Python. Without
    ``stratify`` and ``balance``, a group more or less moves one other group at most from one part to the next, where
    groups are of one size. Raises ``SplitError``, or ``FilterError`` for the condition.
    """
    before = keep if keep is None or isinstance(keep, Splits) else read(keep)
    said = {"fractions": fractions, "group_by": group_by, "balance": balance, "folds": folds, "seed": seed}
    asked = request({**said, "where": where}, None if before is None else before.facts, stratify)
    whole = framed(frame)
    keys = _keys(whole)
    rows = np.arange(whole.rows)
    if asked.where is not None:
        rows = np.flatnonzero(holds(asked.where, whole))
    if not len(rows):
        raise SplitError("no row is left to divide" if asked.where is not None else "there are no rows to divide")
    chosen = whole.taken(rows)
    table = _Table(chosen, [keys[row] for row in rows.tolist()], asked, before)
    parts = table.parted()
    parts[parts == len(asked.fractions)] = -1  # what fractions leave of the whole is the last share
    parts = table.balanced(parts)
    fold = table.folded(parts)
    counts = counted(parts, fold, table.classes, table.groups, asked.fractions, asked.folds or 0)
    if not allow_empty and (lacking := empty(counts)):
        raise SplitError(f"{lacking[0]}. Ask for fewer or larger ones, or say allow_empty=True (--allow-empty)")
    there = np.flatnonzero(parts >= 0)
    label = chosen.columns.get("label")
    return Splits(
        names=tuple(asked.fractions),
        every=[table.keys[row] for row in there.tolist()],
        parts=parts[there],
        folds=None if fold is None else fold[there],
        labels=None if label is None or label.kind == OTHER else label.taken(there).listed(),
        origin=rows[there],
        facts={
            **asked.facts(),
            "rows": whole.rows,
            "left_out": whole.rows - len(there),
            "counts": counts,
            **({} if before is None else {"kept": table.kept.facts()}),
        },
    )


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
    """The rows to be divided, their classes and groups as numbers, and what is kept of an earlier division."""

    def __init__(self, frame: Frame, keys: list[str], request: SplitRequest, before: Splits | None) -> None:
        self.keys, self.request = keys, request
        self.classes = classes_of(frame, request.stratify)
        self.groups: Coded | None = None if request.group_by is None else groups_of(frame, request.group_by)
        self.wanted = wanted(request.balance, list(request.fractions), self.classes.names)
        self.ranks = ranks(keys, request.seed, "rows")
        self.kept = KeptPlaces.of(before, keys, list(request.fractions), request.folds)

    def parted(self) -> Ints:
        """The part of each row."""
        shares = Shares.of(list(self.request.fractions.values()))
        return self._divided(np.arange(len(self.keys)), shares, self.kept.parts, "groups")

    def _divided(self, rows: Ints, shares: Shares, fixed: Ints, purpose: str) -> Ints:
        """The place of each of the rows; ``fixed`` is that of each row that has one."""
        used, classes = np.unique(self.classes.codes[rows], return_inverse=True)
        class_ranks = ranks((self.classes.names[code] for code in used.tolist()), self.request.seed, "classes")
        if self.groups is None:
            order = self.ranks[rows]
            if not (fixed >= 0).any():
                return cut(np.ones(len(rows), np.int64), classes, order, class_ranks, shares)
            groups, named = np.arange(len(rows)), None
        else:
            named = Coded(self.groups.codes[rows], self.groups.names)
            numbers, groups = np.unique(named.codes, return_inverse=True)
            order = ranks((named.names[number] for number in numbers.tolist()), self.request.seed, purpose)
        cells = Cells.of(groups, classes)
        return assigned(cells, order, class_ranks, shares, of_groups(fixed, groups, named))[groups]

    def balanced(self, parts: Ints) -> Ints:
        """The part of each row, -1 for rows that the wanted ratios of the classes leave out; kept ones stay."""
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
                held = self.kept.parts[mine] >= 0
                result[mine[held]] = part
                free, wanted_yet = mine[~held], number - int(held.sum())
                if wanted_yet > 0:
                    result[thinned(free, groups[free], self.ranks[free], wanted_yet)] = part
        return result

    def folded(self, parts: Ints) -> Ints | None:
        """The fold of each row of the first part, -1 elsewhere."""
        if self.request.folds is None:
            return None
        folds = np.full(len(parts), -1, np.int64)
        rows = np.flatnonzero(parts == 0)
        if len(rows):
            fixed = self.kept.folds[rows]
            folds[rows] = self._divided(rows, Shares.even(self.request.folds), fixed, "folds")
        return folds


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
