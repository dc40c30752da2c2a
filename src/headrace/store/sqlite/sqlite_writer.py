"""Puts rows into the tables, payload, metadata and origin together, and takes them out again."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import StoreError
from headrace.store.base import Kind, LabelKind, Record
from headrace.store.catalogues.columns import check_record
from headrace.store.catalogues.origin import Origin, Stored
from headrace.store.sqlite.database import Database, changed, transaction
from headrace.store.sqlite.origins import Origins
from headrace.store.wording import quoted

AT_ONCE = 500
"""Keys of one query."""


class SqliteWriter:
    """Writes batches of rows, each in one transaction."""

    def __init__(
        self, database: Database, connection: sqlite3.Connection, kinds: Mapping[str, Kind], labels: LabelKind
    ) -> None:
        self._database, self._name = database, database.name
        self._connection = connection
        self._kinds, self._columns = kinds, list(kinds)
        self._labels = labels
        self._origins = Origins(connection)
        self._searched: dict[str, bool] = {}  # by run: whether there is anything of another one
        names = ", ".join(map(quoted, kinds))
        marks = ", ".join("?" * len(kinds))
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in self._columns[1:])
        self._put_metadata = (
            f"INSERT INTO metadata ({names}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {changes}"
        )
        self._put_sample = (
            "INSERT INTO samples (key, label, data) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET label = excluded.label, data = excluded.data"
        )

    def put(self, records: Sequence[Record]) -> None:
        if records:
            with self._writing():
                self._insert(records)

    def add(self, records: Sequence[Record]) -> set[str]:
        if not records:
            return set()
        with self._writing():
            there = self.present([record.key for record in records])
            self._insert([record for record in records if record.key not in there])
        return there

    def present(self, keys: Sequence[str]) -> set[str]:
        with self._told():
            return {key for part in _parts(keys) for (key,) in self._rows("key", part)}

    def stored(self, keys: Sequence[str]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        with self._told():
            for part in _parts(keys):
                origins = self._origins.of(part)
                for row in self._rows(", ".join(map(quoted, self._columns)), part):
                    values = dict(zip(self._columns, row, strict=True))
                    key, label, size = values.pop("key"), values.pop("label", None), values.pop("bytes")
                    found[key] = Stored(label, size, values, origins.get(key))
        return found

    def alike(self, origin: Origin) -> dict[str, Origin]:
        if self._searched.get(origin.run) is False:
            return {}
        with self._told():
            if origin.run not in self._searched:
                self._searched[origin.run] = self._origins.any_before(origin.run)
            return self._origins.alike(origin) if self._searched[origin.run] else {}

    def remove(self, keys: Sequence[str]) -> int:
        """Takes rows out, in one transaction; how many there were. Their bytes are overwritten in the file."""
        with self._writing():
            self._connection.execute("PRAGMA secure_delete = ON")  # a patient's picture must not stay in free pages
            there = self.present(keys)
            self._origins.remove(sorted(there))
            for table in ("samples", "metadata"):
                self._connection.executemany(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in there])
            if there:
                changed(self._connection)
        return len(there)

    def _insert(self, records: Sequence[Record]) -> None:
        if not records:
            return
        changed(self._connection)
        self._connection.executemany(self._put_sample, [(r.key, r.label, r.payload) for r in records])
        self._connection.executemany(self._put_metadata, map(self._metadata, records))
        self._origins.put([(record.key, record.origin) for record in records])

    def _rows(self, columns: str, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM metadata WHERE key IN ({', '.join('?' * len(keys))})"
        yield from self._connection.execute(query, list(keys))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._told():
            try:
                with transaction(self._connection):
                    yield
            except BaseException:
                self._origins.forget_numbers()
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A context in which a value that SQLite refuses is an error of that value, not of the store."""
        name = self._name
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_TOOBIG:
                raise StoreError.at(name, "a row is larger than SQLite can hold") from error
            raise self._database.told(error) from error
        except OverflowError as error:
            raise StoreError.at(name, f"a payload, or an integer, is larger than SQLite can hold ({error})") from error
        except UnicodeEncodeError as error:
            raise StoreError.at(
                name, f"{error.object!r:.80} is no text: a name of a file that is not UTF-8 has to be renamed"
            ) from error

    def _metadata(self, record: Record) -> list[object]:
        check_record(record, self._labels, self._kinds, self._name)
        own: dict[str, object] = {"key": record.key, "label": record.label, "bytes": len(record.payload)}
        return [own[name] if name in own else record.metadata.get(name) for name in self._columns]


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), AT_ONCE):
        yield keys[start : start + AT_ONCE]
