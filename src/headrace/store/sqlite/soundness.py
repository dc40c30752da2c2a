"""Check that a file is a store's: SQLite keeps any value in any column, and runs what a file's schema says."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import BadRow, StoreRefused
from headrace.store.base import Kind, Label, LabelKind, Row
from headrace.store.wording import one_line

NEEDED = {"samples": {"id", "key", "label", "data"}, "metadata": {"key", "bytes"}, "about": {"name", "value"}}
TYPES: dict[Kind, set[type]] = {
    Kind.INTEGER: {int, type(None)},
    Kind.NUMBER: {int, float, type(None)},
    Kind.TEXT: {str, type(None)},
    Kind.TRUTH: {int, type(None)},
}
LABELS: dict[LabelKind, type] = {LabelKind.INTEGER: int, LabelKind.BLOB: bytes, LabelKind.NONE: type(None)}


def check_schema(connection: sqlite3.Connection, store: str) -> None:
    """Refuses what would run somebody's statements when it is read or written, and what lacks tables or columns."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    # What has no pages of its own is computed: a virtual table, which runs a module's code when it is read.
    query = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR rootpage IS 0 OR rootpage IS NULL"
    strange = connection.execute(query).fetchone()
    if strange is not None:
        name = one_line(str(strange[0]), 60)
        raise StoreRefused.at(store, f"it has a view, a trigger or the like, {name!r}, as no store has")
    for table, columns in NEEDED.items():
        missing = columns - {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
        if missing:
            raise StoreRefused.at(store, f"the table {table!r} has no column {min(missing)!r}: damaged")


@contextmanager
def sensible(store: str) -> Iterator[None]:
    """A context in which senseless values raise an error that names the store; Python's own would name nothing."""
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        if isinstance(error, StoreRefused):
            raise
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise StoreRefused.at(store, f"it is damaged ({told})") from error


def check_column(name: str, kind: Kind, values: Sequence[Any]) -> None:
    """Raises ``ValueError`` where a column has values of another kind than it says."""
    allowed = TYPES[kind] if name != "key" else {str}
    others = set(map(type, values)) - allowed
    if others or (kind is Kind.TRUTH and not set(values) <= {0, 1, None}):
        found = min(other.__name__ for other in others) if others else "other number"
        raise ValueError(f"column {name!r} holds {kind.value} values, and a {found} is among them")


def checked_row(key: str, label: Any, data: Any, labels: LabelKind, store: str) -> Row:
    """The row, if it is one."""
    wrong = "payload" if type(data) is not bytes else "label" if type(label) is not LABELS[labels] else None
    if wrong is not None:
        given = type(data if wrong == "payload" else label).__name__
        message = f"{store}, key {key!r}: the row has no {wrong}, but a {given}"
        raise BadRow(message.replace("a NoneType", "nothing"), server=store, key=key)
    sound: Label = label
    return Row(key, data, sound)
