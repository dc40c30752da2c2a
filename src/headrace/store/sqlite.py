"""The embedded store: samples and metadata in one SQLite file, written in transactions, read by any process."""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.core.errors import BadStoreUrl, MissingKey, StoreError, StoreRefused, StoreUnavailable
from headrace.store.base import Columns, Info, Kind, LabelKind, LocalStore, Record, Row, Schema
from headrace.store.columns import CLASS, check_kinds, check_labels, check_record, check_schema, chosen, column
from headrace.store.owned import Owned
from headrace.store.url import StoreUrl

APPLICATION_ID = 0x48524163
FORMAT = 1
PAGE = 16384
"""Samples are tens of kilobytes: larger pages make shorter chains of them."""
MMAP = 1 << 31
BUSY_S = 60.0
"""How long a writer waits for another one's transaction."""

DECLARED = {Kind.INTEGER: "INTEGER", Kind.NUMBER: "REAL", Kind.TEXT: "TEXT", Kind.TRUTH: "BOOLEAN"}
KINDS = {declared: kind for kind, declared in DECLARED.items()}
KINDS_QUERY = "PRAGMA table_info(metadata)"


class _Reader:
    """A process's connection, which its threads use in turn.

    SQLite would let them use it together. Python's module keeps one prepared statement per query: a thread that begins
    a query after another one has bound its key, and before that one's first step, takes the statement away from it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._turn = connection, threading.Lock()

    def rows(self, query: str, parameters: tuple[str, ...] = ()) -> list[Any]:
        with self._turn:
            return self._connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        with self._turn:
            self._connection.close()


class SqliteStore(LocalStore):
    """``sqlite:///name.db`` in the working directory, ``sqlite:////abs/olute.db`` anywhere.

    Payloads lie apart from metadata, so that a scan of the metadata reads none of them. Readers never wait for a
    writer. ``?immutable=1`` promises that nobody writes meanwhile: no locks are taken, and read-only media work.
    """

    def __init__(self, url: StoreUrl) -> None:
        url.only(["immutable"])
        path = url.path.removeprefix("/")
        if url.hosts or url.user or not path:
            raise BadStoreUrl(f"{url.redacted}: write sqlite:///name.db, or sqlite:////absolute/name.db")
        self._url = url
        self._path = Path(path).absolute()
        self._immutable = url.number("immutable", 0, least=0) > 0
        self._reader = Owned(self._reading, _Reader.close)

    @property
    def name(self) -> str:
        return self._url.redacted

    def __repr__(self) -> str:
        return f"SqliteStore({self.name!r})"

    def get(self, key: str) -> Row:
        try:
            found = self._reader.get().rows("SELECT label, data FROM samples WHERE key = ?", (key,))
        except sqlite3.Error as error:
            raise self._told(error, key) from error
        if not found:
            raise MissingKey(f"{self.name} has no row with the key {key!r}", server=self.name, key=key)
        label, data = found[0]
        return Row(key, data, label)

    def keys(self) -> list[str]:
        return [key for (key,) in self._select("SELECT key FROM metadata ORDER BY key")]

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        there = self._kinds()
        wanted = chosen(names, there, self.name)
        rows = self._select(f"SELECT {', '.join(map(_quoted, wanted))} FROM metadata ORDER BY key")
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        return {name: column(list(found), there[name]) for name, found in zip(wanted, values, strict=True)}

    def info(self) -> Info:
        kinds, labels = self._kinds(), self.labels()
        [(rows, size)] = self._select("SELECT count(*), total(bytes) FROM metadata")
        by = next((name for name in (CLASS, "label") if name in kinds), None)
        counted = self._select(f"SELECT {_quoted(by)}, count(*) FROM metadata GROUP BY 1 ORDER BY 1") if by else []
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
        check_schema(schema, self.name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = self._connect_writing()
        try:
            with _transaction(connection):
                if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                    _create_tables(connection, schema.labels)
                there = _table_kinds(connection)
                [text] = connection.execute("SELECT value FROM about WHERE name = 'labels'").fetchone()
                check_labels(schema.labels, LabelKind(text), self.name)
                for name in check_kinds(schema.columns, there, self.name):
                    declared = DECLARED[schema.columns[name]]
                    connection.execute(f"ALTER TABLE metadata ADD COLUMN {_quoted(name)} {declared}")
        except sqlite3.Error as error:
            raise self._told(error) from error
        finally:
            connection.close()

    @contextmanager
    def writer(self) -> "Iterator[SqliteWriter]":
        connection = self._connect_writing()
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreRefused(f"{self.name}: nothing has been created there yet", server=self.name)
            [text] = connection.execute("SELECT value FROM about WHERE name = 'labels'").fetchone()
            yield SqliteWriter(self, connection, list(_table_kinds(connection)), LabelKind(text))
        finally:
            connection.close()

    def _connect_writing(self) -> sqlite3.Connection:
        if self._immutable:
            raise BadStoreUrl(f"{self.name}: what is written to is not immutable; leave the option out")
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        except sqlite3.Error as error:
            raise self._told(error) from error
        try:
            ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
            if not ours and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreRefused(f"{self.name}: {self._path} is a database of somebody else's", server=self.name)
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            connection.close()
            raise self._told(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _reading(self) -> _Reader:
        return _Reader(self._open())

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            hint = ""
            if not self._url.path.startswith("//") and Path(self._url.path).exists():
                hint = f"; did you mean sqlite:///{self._url.path}, with four slashes?"
            raise StoreRefused(f"{self.name}: there is no file {self._path}{hint}", server=self.name)
        wal = self._path.with_name(self._path.name + "-wal")
        alone = not os.access(self._path.parent, os.W_OK) and not wal.exists()
        mode = "mode=ro&immutable=1" if self._immutable or alone else "mode=ro"
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?{mode}", uri=True, timeout=BUSY_S, check_same_thread=False
        )
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreRefused(f"{self.name}: {self._path} is no headrace store", server=self.name)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                message = f"{self.name}: a store of format {version}; this release of headrace reads format {FORMAT}"
                raise StoreRefused(message, server=self.name)
            connection.execute(f"PRAGMA mmap_size = {MMAP}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _select(self, query: str) -> list[Any]:
        try:
            return self._reader.get().rows(query)
        except sqlite3.Error as error:
            raise self._told(error) from error

    def _kinds(self) -> dict[str, Kind]:
        try:
            return _kinds_of(self._reader.get().rows(KINDS_QUERY))
        except sqlite3.Error as error:
            raise self._told(error) from error

    def _told(self, error: sqlite3.Error, key: str | None = None) -> StoreError:
        """A driver's error in our words: only a lock that is not let go of may pass."""
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        kind = StoreUnavailable if busy else StoreRefused
        at = "" if key is None else f", key {key!r}"
        return kind(f"{self.name}{at}: {error}", server=self.name, key=key)


class SqliteWriter:
    """Writes batches of rows, each in one transaction."""

    def __init__(
        self, store: SqliteStore, connection: sqlite3.Connection, columns: list[str], labels: LabelKind
    ) -> None:
        self._store = store
        self._connection = connection
        self._columns = columns
        self._labels = labels
        names = ", ".join(map(_quoted, columns))
        marks = ", ".join("?" * len(columns))
        changes = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in columns[1:])
        self._put_metadata = (
            f"INSERT INTO metadata ({names}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {changes}"
        )
        self._put_sample = (
            "INSERT INTO samples (key, label, data) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET label = excluded.label, data = excluded.data"
        )

    def put(self, records: Sequence[Record]) -> None:
        try:
            with _transaction(self._connection):
                self._connection.executemany(self._put_sample, [(r.key, r.label, r.payload) for r in records])
                self._connection.executemany(self._put_metadata, map(self._metadata, records))
        except sqlite3.Error as error:
            raise self._store._told(error) from error  # noqa: SLF001  (its own store)
        except OverflowError as error:
            message = f"{self._store.name}: a payload, or an integer, is larger than SQLite can hold ({error})"
            raise StoreError(message, server=self._store.name) from error

    def present(self, keys: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(keys), 500):
            part = list(keys[start : start + 500])
            query = f"SELECT key FROM metadata WHERE key IN ({', '.join('?' * len(part))})"
            found.update(key for (key,) in self._connection.execute(query, part))
        return found

    def _metadata(self, record: Record) -> list[object]:
        check_record(record, self._labels, self._columns, self._store.name)
        own: dict[str, object] = {"key": record.key, "label": record.label, "bytes": len(record.payload)}
        return [own[name] if name in own else record.metadata.get(name) for name in self._columns]


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _create_tables(connection: sqlite3.Connection, labels: LabelKind) -> None:
    label = "label INTEGER, " if labels is LabelKind.INTEGER else ""
    connection.execute(
        "CREATE TABLE samples (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, label, data BLOB NOT NULL)"
    )
    connection.execute(f"CREATE TABLE metadata (key TEXT PRIMARY KEY NOT NULL, {label}bytes INTEGER)")
    connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)")
    connection.execute("INSERT INTO about VALUES ('labels', ?)", (labels.value,))
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _table_kinds(connection: sqlite3.Connection) -> dict[str, Kind]:
    return _kinds_of(connection.execute(KINDS_QUERY).fetchall())


def _kinds_of(described: list[Any]) -> dict[str, Kind]:
    return {name: KINDS[declared] for _, name, declared, *_ in described}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
