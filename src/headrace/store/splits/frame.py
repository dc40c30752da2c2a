"""Columns of metadata as numpy holds them, made from a pandas DataFrame, a pyarrow Table or a dict of columns.

Neither pandas nor pyarrow is imported: their objects are asked for what they have.
"""

import datetime as dt
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SplitError

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

INTEGER, REAL, TEXT = "integers", "numbers", "text"
OTHER, NOTHING = "values that cannot be compared", "no values"

_AS_TEXT = (uuid.UUID, dt.date, dt.time, os.PathLike)


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column. Where ``null`` is set, the value is a filler of the same type.

    ``kind`` is INTEGER (int64 values, booleans included), REAL (float64), TEXT (str objects; dates, times and UUIDs in
    their ISO forms), OTHER (objects as they came) or NOTHING (objects, all of them missing).
    """

    name: str
    kind: str
    values: npt.NDArray[Any]
    null: Bools

    def taken(self, rows: npt.NDArray[Any]) -> "Column":
        """The column with these rows only: positions, or one boolean per row."""
        return Column(self.name, self.kind, self.values[rows], self.null[rows])

    def listed(self) -> list[Any]:
        """Plain Python values, None where there is none."""
        values: list[Any] = self.values.tolist()
        for row in np.flatnonzero(self.null).tolist():
            values[row] = None
        return values


class Frame:
    """Columns of one length, by name."""

    def __init__(self, columns: Mapping[str, Column], rows: int) -> None:
        self.columns, self.rows = dict(columns), rows

    def column(self, name: str, wanted: str) -> Column:
        """The column of that name; ``wanted`` says what for, in the error where there is none."""
        if name not in self.columns:
            raise SplitError(f"{wanted}: there is no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return self.columns[name]

    def taken(self, rows: npt.NDArray[Any]) -> "Frame":
        """The frame with these rows only."""
        kept = {name: column.taken(rows) for name, column in self.columns.items()}
        return Frame(kept, int(rows.sum()) if rows.dtype == np.bool_ else len(rows))


def framed(data: Any) -> Frame:
    """A frame of whatever holds columns. A pandas index becomes the column "key" where there is none of that name."""
    columns = {name: column(name, values) for name, values in _named(data)}
    lengths = {name: len(each.values) for name, each in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SplitError("columns differ in length: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
    return Frame(columns, next(iter(lengths.values()), 0))


def _named(data: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(data, Mapping):
        return [(str(name), values) for name, values in data.items()]
    if hasattr(data, "column_names"):  # pyarrow.Table
        return [(str(name), data.column(name)) for name in data.column_names]
    if hasattr(data, "columns") and hasattr(data, "index"):  # pandas.DataFrame
        named = [(str(name), data[name]) for name in data.columns]
        return named if any(name in {"key", "id"} for name, _ in named) else [("key", data.index), *named]
    raise TypeError(f"takes a pandas DataFrame, a pyarrow Table or a dict of columns, not {type(data).__name__}")


def column(name: str, values: Any) -> Column:
    """Make a column out of a list, a numpy array, a pandas Series or a pyarrow array."""
    if hasattr(values, "null_count"):  # pyarrow
        values = values.to_pylist() if values.null_count or not _numeric(str(values.type)) else values.to_numpy()
    elif hasattr(values, "isna"):  # pandas
        null = np.asarray(values.isna(), np.bool_)
        array = values.to_numpy()
        if array.dtype.kind not in "biufM":
            objects = values.to_numpy(dtype=object).copy()
            objects[null] = None
            array = objects
        values = array
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufMU":
        return _of_array(name, values)
    return _of_objects(name, list(values))


def _numeric(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat"))


def _of_array(name: str, values: npt.NDArray[Any]) -> Column:
    if values.ndim != 1:
        raise SplitError(f"column {name!r} has {values.ndim} dimensions, one is needed")
    kind = values.dtype.kind
    if kind == "f":
        null = np.isnan(values)
        return Column(name, REAL, np.where(null, 0.0, values.astype(np.float64)), null)
    if kind == "M":
        null = np.isnat(values)
        texts = np.array(np.datetime_as_string(values).tolist(), dtype=object)
        return Column(name, TEXT, texts, null)
    none = np.zeros(len(values), np.bool_)
    if kind == "U":
        return Column(name, TEXT, np.array(values.tolist(), dtype=object), none)
    if kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        return _of_objects(name, values.tolist())
    return Column(name, INTEGER, values.astype(np.int64), none)


def _of_objects(name: str, values: list[Any]) -> Column:
    null = np.fromiter((value is None or _not_itself(value) for value in values), np.bool_, len(values))
    if null.any():
        values = [None if empty else value for value, empty in zip(values, null.tolist(), strict=True)]
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return Column(name, NOTHING, _objects(values), null)
    if all(issubclass(kind, (int, np.integer, np.bool_)) for kind in kinds):
        try:
            return Column(name, INTEGER, np.array([0 if v is None else int(v) for v in values], np.int64), null)
        except OverflowError:
            return Column(name, OTHER, _objects(values), null)
    if all(issubclass(kind, (int, float, np.integer, np.floating, np.bool_)) for kind in kinds):
        return Column(name, REAL, np.array([0.0 if v is None else float(v) for v in values], np.float64), null)
    if all(issubclass(kind, (str, *_AS_TEXT)) for kind in kinds):
        return Column(name, TEXT, _objects([_text(value) for value in values]), null)
    return Column(name, OTHER, _objects(values), null)


def _objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """An array of objects that numpy does not look into."""
    return np.fromiter(values, object, len(values))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _not_itself(value: Any) -> bool:
    """True for NaN, and for what pandas has for nothing."""
    return (isinstance(value, (float, np.floating)) and bool(value != value)) or (  # noqa: PLR0124  (only NaN is not)
        type(value).__name__ in {"NAType", "NaTType"}
    )
