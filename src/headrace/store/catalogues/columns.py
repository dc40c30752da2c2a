"""Metadata as columns: from a database's values to arrays, and what a store holds, told from them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.errors import StoreError
from headrace.store.base import RESERVED, Columns, Info, Kind, LabelKind, Record, Schema
from headrace.store.wording import is_text

if TYPE_CHECKING:
    import numpy.typing as npt

CLASS = "class"
"""The metadata column that names what an integer label means."""
OWN = ("key", "label", "bytes")
"""Columns that every store has, or may have, beside its metadata."""


def own_columns(kinds: Mapping[str, Kind]) -> dict[str, Kind]:
    """The columns that are metadata."""
    return {name: kind for name, kind in kinds.items() if name not in OWN}


def plain(value: Any) -> Any:
    """A value of a column: NaN is none."""
    return None if isinstance(value, float) and value != value else value  # noqa: PLR0124  (only NaN is not itself)


def column(values: Sequence[Any], kind: Kind) -> "npt.NDArray[Any]":
    """Values of one kind, some perhaps None, as the array that ``Columns`` promises."""
    import numpy as np  # noqa: PLC0415  (who reads rows and no columns starts without it)

    if kind is Kind.NUMBER:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    if kind is Kind.TEXT or any(value is None for value in values):
        array = np.empty(len(values), object)
        array[:] = [bool(value) if kind is Kind.TRUTH and value is not None else value for value in values]
        return array
    return np.array(values, np.int64 if kind is Kind.INTEGER else np.bool_)


def chosen(names: Sequence[str] | None, there: Iterable[str], store: str) -> list[str]:
    """The columns to read, ``key`` first. A name that is not there is a ``StoreError`` that lists those that are."""
    known = list(there)
    wanted = known if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise StoreError(f"{store} has no column {name!r}; it has {', '.join(known)}", server=store)
    return ["key", *(name for name in dict.fromkeys(wanted) if name != "key")]


def check_schema(schema: Schema, store: str) -> None:
    """Refuses names that no store could keep apart."""
    seen: dict[str, str] = {}
    for name in schema.columns:
        if not name or "\0" in name or not is_text(name):
            raise StoreError.at(store, f"a metadata column needs a name, not {name!r}")
        if name.lower() in RESERVED:
            raise StoreError.at(store, f"a metadata column cannot be called {name!r}; rename it")
        if name.lower() in seen:
            both = f"{seen[name.lower()]!r} and {name!r}"
            raise StoreError.at(store, f"metadata columns {both} differ only in case; rename one")
        seen[name.lower()] = name


def check_labels(wanted: LabelKind, there: LabelKind, store: str) -> None:
    """Labels of one kind per store: a store that is there keeps its own."""
    if wanted is not there:
        has = "has no labels" if there is LabelKind.NONE else f"has {there.value} labels"
        raise StoreError(f"{store} {has}; it cannot take rows with {wanted.value} ones", server=store)


def check_kinds(wanted: Mapping[str, Kind], there: Mapping[str, Kind], store: str) -> list[str]:
    """The wanted columns that are missing. One that is there with another kind is a ``StoreError``."""
    for name, kind in wanted.items():
        if there.get(name, kind) is not kind:
            raise StoreError.at(
                store, f"column {name!r} holds {there[name].value} values; it cannot take {kind.value} ones"
            )
    return [name for name in wanted if name not in there]


def check_record(record: Record, labels: LabelKind, columns: Mapping[str, Kind], store: str) -> None:
    """Refuses a row that the store could not give back as it is, and one that would make the columns unreadable."""
    if not isinstance(record.key, str):
        raise StoreError.at(store, f"keys are texts, and {record.key!r:.60} is none")
    unknown = record.metadata.keys() - columns.keys()
    if unknown:
        raise StoreError(
            f"{store} has no column {min(unknown)!r}; name it in the schema (key {record.key!r})",
            server=store,
            key=record.key,
        )
    fits = {
        LabelKind.INTEGER: isinstance(record.label, int),
        LabelKind.BLOB: isinstance(record.label, bytes),
        LabelKind.NONE: record.label is None,
    }
    if not fits[labels]:
        told = "no label" if labels is LabelKind.NONE else f"{labels.value} labels"
        raise StoreError(
            f"{store} takes rows with {told}, not with {record.label!r:.60} (key {record.key!r})",
            server=store,
            key=record.key,
        )
    for name, value in record.metadata.items():
        if not _keeps(columns[name], value):
            told = f"column {name!r} holds {columns[name].value} values, and cannot take {value!r:.60}"
            raise StoreError.at(store, f"{told} (key {record.key!r})", key=record.key)
    if labels is LabelKind.INTEGER and not _keeps(Kind.INTEGER, record.label):
        told = f"labels have 64 bits, and {record.label!r:.60} has more"
        raise StoreError.at(store, f"{told} (key {record.key!r})", key=record.key)


def _keeps(kind: Kind, value: Any) -> bool:
    """Numbers of numpy's are none of Python's: SQLite would keep their bytes, and the column be read no more."""
    if value is None:
        return True
    if kind is Kind.TRUTH:
        return isinstance(value, int) and value in (0, 1)
    if kind is Kind.INTEGER:
        return isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    return isinstance(value, str if kind is Kind.TEXT else (int, float))


def describe(store: str, columns: Columns, labels: LabelKind, kinds: Mapping[str, Kind]) -> Info:
    """The ``Info`` of a store whose metadata has been read: its key, label, bytes and class columns are enough."""
    named = columns.get(CLASS, columns.get("label"))
    classes = {} if named is None else Counter("" if value is None else str(value) for value in named.tolist())
    sizes = columns.get("bytes")
    known = sizes is not None and all(size is not None for size in sizes.tolist())
    return Info(
        url=store,
        rows=len(columns["key"]),
        payload_bytes=int(sizes.sum()) if known and sizes is not None else None,
        labels=labels,
        classes=dict(sorted(classes.items(), key=_by_number)),
        columns=dict(kinds),
    )


def _by_number(item: tuple[str, int]) -> tuple[int, str]:
    name = item[0]
    return (int(name), "") if name.isdecimal() else (-1, name)
