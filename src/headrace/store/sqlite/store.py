"""Samples by key, and their metadata in columns, from the tables of one file."""

import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import MissingKey, StoreRefused
from headrace.store.base import Columns, Info, Kind, LabelKind, LocalStore, Row, Schema
from headrace.store.columns import CLASS, chosen, column, own_columns
from headrace.store.origin import Origin, removed
from headrace.store.owned import Owned
from headrace.store.provenance import Provenance, of_file
from headrace.store.sqlite import origins, soundness
from headrace.store.sqlite.database import (
    IDENTITY,
    REVISION,
    Database,
    SqliteReader,
    kinds_of,
    labels_of,
    ours,
    quoted,
    transaction,
)
from headrace.store.sqlite.writer import SqliteWriter
from headrace.store.url import StoreUrl


class SqliteStore(LocalStore):
    """``sqlite:///name.db`` in the working directory, ``sqlite:////abs/olute.db`` anywhere.

    Payloads lie apart from metadata, so that a scan of the metadata reads none of them. Readers never wait for a
    writer. ``?immutable=1`` promises that nobody writes meanwhile: no locks are taken, and read-only media work.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._database = Database(url)
        self._reader = Owned(self._database.reading, SqliteReader.close)

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
        return soundness.checked_row(key, label, data, self._reader.get().labels, self.name)

    def keys(self) -> list[str]:
        with soundness.sensible(self.name):
            found = [key for (key,) in self._select("SELECT key FROM metadata ORDER BY key")]
            soundness.check_column("key", Kind.TEXT, found)
        return found

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        there = self._kinds()
        wanted = chosen(names, there, self.name)
        rows = self._select(f"SELECT {', '.join(map(quoted, wanted))} FROM metadata ORDER BY key")
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        made = {}
        with soundness.sensible(self.name):
            for name, several in zip(wanted, values, strict=True):
                found = list(several)
                soundness.check_column(name, there[name], found)
                made[name] = column(found, there[name])
        return made

    def info(self) -> Info:
        kinds, labels = self._kinds(), self.labels()
        [(rows, size)] = self._select("SELECT count(*), sum(max(0, CAST(bytes AS INTEGER))) FROM metadata")
        by = next((name for name in (CLASS, "label") if name in kinds), None)
        counted = self._select(f"SELECT {quoted(by)}, count(*) FROM metadata GROUP BY 1 ORDER BY 1") if by else []
        classes = {"" if value is None else str(value): count for value, count in counted}
        return Info(self.name, rows, size or 0, labels, classes, own_columns(kinds))

    def close(self) -> None:
        self._reader.close()

    def labels(self) -> LabelKind:
        """What the labels of this store are."""
        try:
            return self._reader.get().labels
        except sqlite3.Error as error:
            raise self._database.told(error) from error

    def provenance(self) -> Provenance:
        """As the file says; of one that an older release made and nobody wrote to since, as the system says."""
        try:
            known = self._reader.get().about()
        except sqlite3.Error as error:
            raise self._database.told(error) from error
        if isinstance(known.get(IDENTITY), str) and isinstance(known.get(REVISION), str):
            return Provenance(known[IDENTITY], known[REVISION])
        return of_file(self._database.path, self._database.log)

    def create(self, schema: Schema) -> None:
        self._database.create(schema)

    def settle(self) -> bool:
        return self._database.settle()

    def remove(self, keys: Collection[str]) -> Generator[int, None, None]:
        return removed(self.writer(), keys)

    def origins(self) -> Iterator[tuple[str, Origin]]:
        try:
            yield from self._reader.get().origins()
        except sqlite3.Error as error:
            raise self._database.told(error) from error

    def class_numbers(self) -> dict[str, int]:
        try:
            with soundness.sensible(self.name):
                found = self._reader.get().class_numbers()
                soundness.check_column("classes", Kind.INTEGER, list(found.values()))
                return found
        except sqlite3.Error as error:
            raise self._database.told(error) from error

    def name_classes(self, numbers: Mapping[str, int]) -> None:
        with self._writing() as connection, transaction(connection):
            origins.name_classes(connection, numbers)

    @contextmanager
    def writer(self) -> Iterator[SqliteWriter]:
        with self._writing() as connection:
            with soundness.sensible(self.name):
                kinds, labels = kinds_of(connection), labels_of(connection)
            yield SqliteWriter(self._database, connection, list(kinds), labels)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        connection = self._database.writing()
        try:
            if not ours(connection):
                raise StoreRefused(f"{self.name}: nothing has been created there yet", server=self.name)
            if not origins.there(connection):
                with transaction(connection):
                    origins.make_tables(connection)
            yield connection
        except sqlite3.Error as error:
            raise self._database.told(error) from error
        finally:
            try:
                self._database.settle(connection)
            finally:
                connection.close()

    def _select(self, query: str) -> list[Any]:
        try:
            return self._reader.get().rows(query)
        except sqlite3.Error as error:
            raise self._database.told(error) from error

    def _kinds(self) -> dict[str, Kind]:
        try:
            with soundness.sensible(self.name):
                return self._reader.get().kinds()
        except sqlite3.Error as error:
            raise self._database.told(error) from error
