"""A store's file as SQLite has it: who may open it and how, what tables are in it, and its errors in our words."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.core.errors import BadStoreUrl, StoreError, StoreRefused, StoreUnavailable
from headrace.store.base import Kind, LabelKind, Schema
from headrace.store.columns import check_kinds, check_labels, check_schema
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


class Reader:
    """A process's connection, which its threads use in turn.

    SQLite would let them use it together. Python's module keeps one prepared statement per query: a thread that begins
    a query after another one has bound its key, and before that one's first step, takes the statement away from it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._turn = connection, threading.Lock()

    def rows(self, query: str, parameters: tuple[str, ...] = ()) -> list[Any]:
        with self._turn:
            return self._connection.execute(query, parameters).fetchall()

    def kinds(self) -> dict[str, Kind]:
        with self._turn:
            return kinds_of(self._connection)

    def close(self) -> None:
        with self._turn:
            self._connection.close()


class Database:
    """The file that a URL names. Nothing is opened before it is asked for; it may be pickled."""

    def __init__(self, url: StoreUrl) -> None:
        url.only(["immutable"])
        path = url.path.removeprefix("/")
        if url.hosts or url.user or not path:
            raise BadStoreUrl(f"{url.redacted}: write sqlite:///name.db, or sqlite:////absolute/name.db")
        self._url = url
        self.path = Path(path).absolute()
        self._immutable = url.number("immutable", 0, least=0) > 0

    @property
    def name(self) -> str:
        return self._url.redacted

    def writing(self) -> sqlite3.Connection:
        """A connection to write through, to a file that is made if need be."""
        if self._immutable:
            raise BadStoreUrl(f"{self.name}: what is written to is not immutable; leave the option out")
        try:
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        except sqlite3.Error as error:
            raise self.told(error) from error
        try:
            if not ours(connection) and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreRefused(f"{self.name}: {self.path} is a database of somebody else's", server=self.name)
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            connection.close()
            raise self.told(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def reading(self) -> Reader:
        """This process's connection; of a store that was created."""
        if not self.path.exists():
            hint = ""
            if not self._url.path.startswith("//") and Path(self._url.path).exists():
                hint = f"; did you mean sqlite:///{self._url.path}, with four slashes?"
            raise StoreRefused(f"{self.name}: there is no file {self.path}{hint}", server=self.name)
        wal = self.path.with_name(self.path.name + "-wal")
        alone = not os.access(self.path.parent, os.W_OK) and not wal.exists()
        mode = "mode=ro&immutable=1" if self._immutable or alone else "mode=ro"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}", uri=True, timeout=BUSY_S, check_same_thread=False
        )
        try:
            if not ours(connection):
                raise StoreRefused(f"{self.name}: {self.path} is no headrace store", server=self.name)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                message = f"{self.name}: a store of format {version}; this release of headrace reads format {FORMAT}"
                raise StoreRefused(message, server=self.name)
            connection.execute(f"PRAGMA mmap_size = {MMAP}")
        except BaseException:
            connection.close()
            raise
        return Reader(connection)

    def create(self, schema: Schema) -> None:
        """Makes the tables and columns that are not there yet; ``StoreError`` where others are."""
        check_schema(schema, self.name)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = self.writing()
        try:
            with transaction(connection):
                if not ours(connection):
                    _create_tables(connection, schema.labels)
                there = kinds_of(connection)
                check_labels(schema.labels, labels_of(connection), self.name)
                for name in check_kinds(schema.columns, there, self.name):
                    declared = DECLARED[schema.columns[name]]
                    connection.execute(f"ALTER TABLE metadata ADD COLUMN {quoted(name)} {declared}")
        except sqlite3.Error as error:
            raise self.told(error) from error
        finally:
            connection.close()

    def told(self, error: sqlite3.Error, key: str | None = None) -> StoreError:
        """A driver's error in our words: only a lock that is not let go of may pass."""
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        kind = StoreUnavailable if busy else StoreRefused
        at = "" if key is None else f", key {key!r}"
        return kind(f"{self.name}{at}: {error}", server=self.name, key=key)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it is there in the end, or none."""
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


def ours(connection: sqlite3.Connection) -> bool:
    """Whether it is a store's."""
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def labels_of(connection: sqlite3.Connection) -> LabelKind:
    """What the labels of a store are."""
    [text] = connection.execute("SELECT value FROM about WHERE name = 'labels'").fetchone()
    return LabelKind(text)


def kinds_of(connection: sqlite3.Connection) -> dict[str, Kind]:
    """The columns of a store's metadata."""
    described = connection.execute("PRAGMA table_info(metadata)").fetchall()
    return {name: KINDS[declared] for _, name, declared, *_ in described}


def quoted(name: str) -> str:
    """A column as a query names it."""
    return '"' + name.replace('"', '""') + '"'
