"""Samples by key, and their metadata in columns, from the tables of one file."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from headrace.core.errors import MissingKey, StoreRefused
from headrace.store.base import Beginning, Columns, Info, Kind, LabelKind, LocalStore, PartialCatalogue, Row, Schema
from headrace.store.catalogues.columns import CLASS, chosen, column, own_columns
from headrace.store.catalogues.origin import Origin, RemovingStore
from headrace.store.catalogues.provenance import Provenance, of_file
from headrace.store.reading.owned import Owned
from headrace.store.sqlite import origins, soundness
from headrace.store.sqlite.database import (
    IDENTITY,
    REVISION,
    Database,
    SqliteReader,
    about,
    kinds_of,
    labels_of,
    ours,
    transaction,
)
from headrace.store.sqlite.sqlite_writer import SqliteWriter
from headrace.store.url import StoreUrl, UrlNamed
from headrace.store.wording import is_text, quoted


class SqliteStore(UrlNamed, LocalStore, PartialCatalogue, RemovingStore):
    """``sqlite:///name.db`` in the working directory, ``sqlite:////abs/olute.db`` anywhere.

    Payloads lie apart from metadata, so that a scan of the metadata reads none of them. Readers never wait for a
    writer. ``?immutable=1`` promises that nobody writes meanwhile: no locks are taken, and read-only media work.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._url, self._database = url, Database(url)
        self._reader = Owned(self._database.reading, SqliteReader.close)

    def get(self, key: str) -> Row:
        try:
            reader = self._reader.get()
            found = reader.rows("SELECT label, data FROM samples WHERE key = ?", (key,))
        except sqlite3.Error as error:
            raise self._database.told(error, key) from error
        except UnicodeEncodeError:  # what is no text was never stored
            raise self._missing(key) from None
        if not found:
            raise self._missing(key)
        label, data = found[0]
        return soundness.checked_row(key, label, data, reader.labels, self.name)

    def _missing(self, key: str) -> MissingKey:
        return MissingKey(f"{self.name} has no row with the key {key!r}", server=self.name, key=key)

    def keys(self) -> list[str]:
        with self._reading() as connection:
            found = [key for (key,) in connection.execute("SELECT key FROM metadata ORDER BY key")]
            soundness.check_column("key", Kind.TEXT, found)
        return found

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        with self._reading() as connection:
            there = kinds_of(connection)
            wanted = chosen(names, there, self.name)
            rows = connection.execute(f"{_select(wanted)} ORDER BY key").fetchall()
        return self._made(wanted, there, rows)

    def facts(self, keys: Sequence[str]) -> Columns:
        with self._reading() as connection:
            there = kinds_of(connection)
            wanted = chosen(None, there, self.name)
            select = f"{_select(wanted)} WHERE key = ?"
            texts = filter(is_text, dict.fromkeys(keys))  # what is no text was never stored
            rows = [row for key in texts for row in connection.execute(select, (key,))]
        return self._made(wanted, there, rows)

    def beginning(self, most: int) -> Beginning:
        with self._reading() as connection:
            there = kinds_of(connection)
            wanted = chosen(None, there, self.name)
            rows = connection.execute(f"{_select(wanted)} ORDER BY key LIMIT ?", (most,)).fetchall()
            [(count,)] = connection.execute("SELECT count(*) FROM metadata").fetchall()
        return Beginning(self._made(wanted, there, rows), count)

    def _made(self, wanted: Sequence[str], there: Mapping[str, Kind], rows: Sequence[Sequence[Any]]) -> Columns:
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        made = {}
        with soundness.sensible(self.name):  # other threads need not wait for that
            for name, several in zip(wanted, values, strict=True):
                found = list(several)
                soundness.check_column(name, there[name], found)
                made[name] = column(found, there[name])
        return made

    def info(self) -> Info:
        with self._reading() as connection:
            kinds = kinds_of(connection)
            size_of = "SELECT count(*), sum(max(0, CAST(bytes AS INTEGER))) FROM metadata"
            [(rows, size)] = connection.execute(size_of).fetchall()
            by = next((name for name in (CLASS, "label") if name in kinds), None)
            counts = f"SELECT {quoted(by)}, count(*) FROM metadata GROUP BY 1 ORDER BY 1" if by else None
            counted = [] if counts is None else connection.execute(counts).fetchall()
        classes = {"" if value is None else str(value): count for value, count in counted}
        return Info(self.name, rows, size or 0, self.labels(), classes, own_columns(kinds))

    def close(self) -> None:
        self._reader.close()

    def labels(self) -> LabelKind:
        """The kind of this store's labels."""
        with self._database.telling():
            return self._reader.get().labels

    def provenance(self) -> Provenance:
        """Provenance as the file says, or as the system says for an older release's file that nobody wrote to
        since.
        """
        with self._reading() as connection:
            known = about(connection)
        if isinstance(known.get(IDENTITY), str) and isinstance(known.get(REVISION), str):
            return Provenance(known[IDENTITY], known[REVISION])
        return of_file(self._database.path, self._database.log)

    def create(self, schema: Schema) -> None:
        self._database.create(schema)

    def settle(self) -> bool:
        return self._database.settle()

    def origins(self) -> Iterator[tuple[str, Origin]]:
        with self._reading() as connection:
            found = list(origins.listed(connection)) if origins.there(connection) else []
        return iter(found)

    def class_numbers(self) -> dict[str, int]:
        with self._reading() as connection:
            if not origins.there(connection):
                return {}
            found = dict(connection.execute("SELECT name, number FROM classes"))
            soundness.check_column("classes", Kind.INTEGER, list(found.values()))
            return found

    def name_classes(self, numbers: Mapping[str, int]) -> None:
        with self._writing() as connection, transaction(connection):
            origins.name_classes(connection, numbers)

    @contextmanager
    def writer(self) -> Iterator[SqliteWriter]:
        with self._writing() as connection:
            with soundness.sensible(self.name):
                kinds, labels = kinds_of(connection), labels_of(connection)
            yield SqliteWriter(self._database, connection, kinds, labels)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._database.telling(), closing(self._database.writing()) as connection:
            try:
                if not ours(connection):
                    raise StoreRefused.at(self.name, "nothing has been created there yet")
                if not origins.there(connection):
                    with transaction(connection):
                        origins.make_tables(connection)
                yield connection
            finally:
                self._database.settle(connection)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """This process's connection, while it is the turn of this thread."""
        with self._database.telling():
            reader = self._reader.get()
            with reader.turn, soundness.sensible(self.name):
                yield reader.connection


def _select(columns: Sequence[str]) -> str:
    return f"SELECT {', '.join(map(quoted, columns))} FROM metadata"
