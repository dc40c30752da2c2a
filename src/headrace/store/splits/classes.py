"""Values as numbers without gaps: the classes and groups that rows fall into. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SplitError
from headrace.store.splits.frame import INTEGER, NOTHING, REAL, TEXT, Column, Frame, Ints

MISSING = "(none)"
"""The class of rows that have no value."""


@dataclass(frozen=True, eq=False)
class Coded:
    """Codes, one per row, and one name per code; names are in the order of the values."""

    codes: Ints
    names: tuple[str, ...]


def coded(column: Column, wanted: str) -> Coded:
    """The different values of a column. ``wanted`` says what for, in the error where it holds none to compare."""
    if column.kind in {INTEGER, REAL}:
        values, codes = np.unique(column.values, return_inverse=True)
        names = [str(int(value)) if float(value).is_integer() else repr(value) for value in values.tolist()]
    elif column.kind == TEXT:
        names = sorted(set(column.values.tolist()))
        number = {name: code for code, name in enumerate(names)}
        codes = np.fromiter(map(number.__getitem__, column.values.tolist()), np.int64, len(column.values))
    elif column.kind == NOTHING:
        names, codes = [], np.zeros(len(column.values), np.int64)
    else:
        raise SplitError(f"{wanted}: {column.name} has {column.kind}")
    if not column.null.any():
        return Coded(codes.astype(np.int64), tuple(names))
    codes = np.where(column.null, len(names), codes)
    used, codes = np.unique(codes, return_inverse=True)
    every = [*names, MISSING]
    return Coded(codes.astype(np.int64), tuple(every[code] for code in used.tolist()))


def classes_of(frame: Frame, stratify: Sequence[str]) -> Coded:
    """The class of each row: the values of the columns together, one class for all rows where none is named."""
    found = Coded(np.zeros(frame.rows, np.int64), ("",))
    for name in stratify:
        column = coded(frame.column(name, "stratify"), "stratify")
        if name == "label":
            column = _named(column, frame)
        pairs, codes = np.unique(found.codes * len(column.names) + column.codes, return_inverse=True)
        before = [found.names[pair // len(column.names)] for pair in pairs.tolist()]
        now = [column.names[pair % len(column.names)] for pair in pairs.tolist()]
        joined = [f"{one} / {other}" if one else other for one, other in zip(before, now, strict=True)]
        found = Coded(codes.astype(np.int64), tuple(joined))
    if len(found.names) > max(frame.rows // 2, 1000):
        raise SplitError(
            f"stratify: {' and '.join(stratify)} has {len(found.names)} different values in {frame.rows} rows; "
            "it takes classes, with several rows each"
        )
    return found


def _named(labels: Coded, frame: Frame) -> Coded:
    """A store's labels by the names in its column ``class``, where each has one of its own."""
    if "class" not in frame.columns:
        return labels
    classes = coded(frame.columns["class"], "class")
    pairs = np.unique(np.stack([labels.codes, classes.codes]), axis=1)
    if not pairs.shape[1] == len(labels.names) == len(classes.names):
        return labels
    return Coded(labels.codes, tuple(classes.names[code] for code in pairs[1].tolist()))


def groups_of(frame: Frame, group_by: str) -> Coded:
    """The group of each row. Raises ``SplitError`` where one has none: it could belong to any of them."""
    column = frame.column(group_by, "group_by")
    missing = int(column.null.sum())
    if missing:
        shown = f'"{group_by}"' if not group_by.isidentifier() else group_by
        raise SplitError(
            f"group_by: {missing} of {frame.rows} rows have no {group_by}, and may belong to any group; "
            f"leave them out with the filter {shown} IS NOT NULL"
        )
    return coded(column, "group_by")
