"""Samples by key, and their metadata in columns, from the tables of one file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import MissingKey, StoreRefused
from headrace.store.base import Columns, Info, Kind, LabelKind, LocalStore, Row, Schema
from headrace.store.columns import CLASS, chosen, column
from headrace.store.owned import Owned
from headrace.store.sqlite.database import Database, Reader, kinds_of, labels_of, ours, quoted
from headrace.store.sqlite.writer import SqliteWriter
from headrace.store.url import StoreUrl


class SqliteStore(LocalStore):
    """``sqlite:///name.db`` in the working directory, ``sqlite:////abs/olute.db`` anywhere.

    Payloads lie apart from metadata, so that a scan of the metadata reads none of them. Readers never wait for a
    writer. ``?immutable=1`` promises that nobody writes meanwhile: no locks are taken, and read-only media work.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._database = Database(url)
        self._reader = Owned(self._database.reading, Reader.close)

    @property
    def name(self) -> str:
        return self._database.name

    def __repr__(self) -> str:
        return f"SqliteStore({self.name!r})"

    def get(self, key: str) -> Row:
        try:
            found = self._reader.get().rows("SELECT label, data FROM samples WHERE key = ?", (key,))
        except sqlite3.Error as error:
            raise self._database.told(error, key) from error
        if not found:
            raise MissingKey(f"{self.name} has no row with the key {key!r}", server=self.name, key=key)
        label, data = found[0]
        return Row(key, data, label)

    def keys(self) -> list[str]:
        return [key for (key,) in self._select("SELECT key FROM metadata ORDER BY key")]

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        there = self._kinds()
        wanted = chosen(names, there, self.name)
        rows = self._select(f"SELECT {', '.join(map(quoted, wanted))} FROM metadata ORDER BY key")
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        return {name: column(list(found), there[name]) for name, found in zip(wanted, values, strict=True)}

    def info(self) -> Info:
        kinds, labels = self._kinds(), self.labels()
        [(rows, size)] = self._select("SELECT count(*), total(bytes) FROM metadata")
        by = next((name for name in (CLASS, "label") if name in kinds), None)
        counted = self._select(f"SELECT {quoted(by)}, count(*) FROM metadata GROUP BY 1 ORDER BY 1") if by else []
        classes = {"" if value is None else str(value): count for value, count in counted}
        own = {name: kind for name, kind in kinds.items() if name not in ("key", "label", "bytes")}
        return Info(self.name, rows, int(size), labels, classes, own)

    def close(self) -> None:
        self._reader.close()

    def labels(self) -> LabelKind:
        """What the labels of this store are."""
        [(text,)] = self._select("SELECT value FROM about WHERE name = 'labels'")
        return LabelKind(text)

    def create(self, schema: Schema) -> None:
        self._database.create(schema)

    @contextmanager
    def writer(self) -> Iterator[SqliteWriter]:
        connection = self._database.writing()
        try:
            if not ours(connection):
                raise StoreRefused(f"{self.name}: nothing has been created there yet", server=self.name)
            yield SqliteWriter(self._database, connection, list(kinds_of(connection)), labels_of(connection))
        finally:
            connection.close()

    def _select(self, query: str) -> list[Any]:
        try:
            return self._reader.get().rows(query)
        except sqlite3.Error as error:
            raise self._database.told(error) from error

    def _kinds(self) -> dict[str, Kind]:
        try:
            return self._reader.get().kinds()
        except sqlite3.Error as error:
            raise self._database.told(error) from error
