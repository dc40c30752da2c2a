"""Puts rows into the tables, payload and metadata together."""

import sqlite3
from collections.abc import Sequence

from headrace.core.errors import StoreError
from headrace.store.base import LabelKind, Record
from headrace.store.columns import check_record
from headrace.store.sqlite.database import Database, quoted, transaction


class SqliteWriter:
    """Writes batches of rows, each in one transaction."""

    def __init__(
        self, database: Database, connection: sqlite3.Connection, columns: list[str], labels: LabelKind
    ) -> None:
        self._database = database
        self._connection = connection
        self._columns = columns
        self._labels = labels
        names = ", ".join(map(quoted, columns))
        marks = ", ".join("?" * len(columns))
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns[1:])
        self._put_metadata = (
            f"INSERT INTO metadata ({names}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {changes}"
        )
        self._put_sample = (
            "INSERT INTO samples (key, label, data) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET label = excluded.label, data = excluded.data"
        )

    def put(self, records: Sequence[Record]) -> None:
        try:
            with transaction(self._connection):
                self._connection.executemany(self._put_sample, [(r.key, r.label, r.payload) for r in records])
                self._connection.executemany(self._put_metadata, map(self._metadata, records))
        except sqlite3.Error as error:
            raise self._database.told(error) from error
        except OverflowError as error:
            message = f"{self._database.name}: a payload, or an integer, is larger than SQLite can hold ({error})"
            raise StoreError(message, server=self._database.name) from error

    def present(self, keys: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(keys), 500):
            part = list(keys[start : start + 500])
            query = f"SELECT key FROM metadata WHERE key IN ({', '.join('?' * len(part))})"
            found.update(key for (key,) in self._connection.execute(query, part))
        return found

    def _metadata(self, record: Record) -> list[object]:
        check_record(record, self._labels, self._columns, self._database.name)
        own: dict[str, object] = {"key": record.key, "label": record.label, "bytes": len(record.payload)}
        return [own[name] if name in own else record.metadata.get(name) for name in self._columns]
