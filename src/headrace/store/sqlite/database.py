"""A store's file as SQLite has it: who may open it and how, what tables are in it, and its errors in our words."""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.core.errors import BadStoreUrl, StoreError, StoreRefused, StoreUnavailable
from headrace.store.base import Kind, LabelKind, Schema
from headrace.store.catalogues.columns import check_kinds, check_labels, check_schema
from headrace.store.catalogues.provenance import new_identity, next_revision
from headrace.store.files import is_there
from headrace.store.sqlite import origins, soundness
from headrace.store.url import StoreUrl, UrlNamed
from headrace.store.wording import one_line, quoted

APPLICATION_ID = 0x48524163
FORMAT = 1
PAGE = 16384
"""Samples are tens of kilobytes: larger pages make shorter chains of them."""
MMAP = 1 << 31  # as much as SQLite is built for: what is mapped is not copied into its cache
BUSY_S = 60.0
"""How long a writer waits for another one's transaction."""
SETTLE_S = 5.0
"""How long the end of writing waits for somebody who reads at that moment."""
IDENTITY, REVISION = "store_id", "revision"

DECLARED = {Kind.INTEGER: "INTEGER", Kind.NUMBER: "REAL", Kind.TEXT: "TEXT", Kind.TRUTH: "BOOLEAN"}
KINDS = {declared: kind for kind, declared in DECLARED.items()}


class SqliteConnection(sqlite3.Connection):
    """Connection whose errors can always be told: SQLite names what is damaged, and Python cannot read every name."""

    def execute(self, query: str, parameters: Any = ()) -> sqlite3.Cursor:
        try:
            return super().execute(query, parameters)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("what it says of itself is no text: damaged") from error


class SqliteReader:
    """A process's connection, which its threads use in turn.

    SQLite would let them use it together. Python's module keeps one prepared statement per query: a thread that begins
    a query after another one has bound its key, and before that one's first step, takes the statement away from it.
    """

    def __init__(self, connection: sqlite3.Connection, labels: LabelKind) -> None:
        self.connection, self.turn = connection, threading.Lock()
        self.labels = labels
        # Nobody closes a dataset: Python 3.13 warns of connections that end without it.
        weakref.finalize(self, connection.close).atexit = False

    def rows(self, query: str, parameters: tuple[str, ...] = ()) -> list[Any]:
        with self.turn:
            return self.connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        with self.turn:
            self.connection.close()


class Database(UrlNamed):
    """The file that a URL names. Nothing is opened before it is asked for; it may be pickled."""

    def __init__(self, url: StoreUrl) -> None:
        url.only(["immutable"])
        path = url.path.removeprefix("/")
        if url.hosts or url.user or not path:
            raise BadStoreUrl(f"{url.redacted}: write sqlite:///name.db, or sqlite:////absolute/name.db")
        self._url = url
        self.path = Path(path).absolute()
        self._immutable = url.number("immutable", 0, least=0) > 0

    def writing(self) -> sqlite3.Connection:
        """A connection to write through, to a file that is made if need be."""
        if self._immutable:
            raise BadStoreUrl(f"{self.name}: what is written to is not immutable; leave the option out")
        self._check_file()
        with self.telling():
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, factory=SqliteConnection)
            return self._prepared(connection)

    def _prepared(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Make a connection ready to be written through; it is closed where it is no store's."""
        try:
            # Both are asked before anything is set: a stranger's database must not be changed, not even its log.
            # The tables first: another process may make them, and its mark with them, in between.
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not ours(connection):
                raise StoreRefused.at(self.name, f"{self.path} is a database of somebody else's")
            if ours(connection):
                self._check_format(connection)
                soundness.check_schema(connection, self.name)
            connection.execute(f"PRAGMA page_size = {PAGE}")  # before the log begins: afterwards it is ignored
            _begin_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def settle(self, connection: sqlite3.Connection | None = None) -> bool:
        """Puts all that is written into the file itself, which can then be copied; whether that was possible.

        Rows are safe without it, but lie in the file's log. Where nobody else has the file open the log is gone
        afterwards, and reading leaves nothing beside the file.
        """
        if connection is None:
            if not self.log.exists():
                return True
            with closing(self.writing()) as opened:
                return self.settle(opened)
        try:
            connection.execute(f"PRAGMA busy_timeout = {round(SETTLE_S * 1000)}")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:  # without a log, a copy is one file, and a folder that is read-only can be read from
                connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:  # others have it open: the last of them to write does this
            return not self.log.exists() or self.log.stat().st_size == 0
        return not busy

    @property
    def log(self) -> Path:
        """The write-ahead log: the place of rows while a writer is at work, or where a killed one has left them."""
        real = Path(os.path.realpath(self.path))
        return real.with_name(real.name + "-wal")

    def reading(self) -> SqliteReader:
        """This process's connection; of a store that was created."""
        try:
            there = is_there(self.path)
        except OSError as error:
            reason = f"{self.name}: {self.path} cannot be looked at: {error.strerror}"
            raise StoreRefused(reason, server=self.name) from error
        if not there:
            hint = ""
            if not self._url.path.startswith("//") and Path(self._url.path).exists():
                hint = f"; did you mean sqlite:///{self._url.path}, with four slashes?"
            raise StoreRefused.at(self.name, f"there is no file {self.path}{hint}")
        self._check_file()
        rows_in_log = self.log.exists() and self.log.stat().st_size > 0
        if self._immutable and rows_in_log:
            message = f"{self.name}: rows lie in {self.log}, so it is written to or a writer was killed"
            raise StoreRefused(f"{message}; leave immutable= out", server=self.name)
        # Where no log can be made, SQLite refuses to read unless it is told that nobody writes, and then nobody can.
        alone = not os.access(self.log.parent, os.W_OK) and not rows_in_log
        try:
            return self._connected("mode=ro&immutable=1" if self._immutable or alone else "mode=ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK:
                self.writing().close()  # a writer was killed in the moment in which it put its log away
                return self._connected("mode=ro")
            if rows_in_log and not os.access(self.log.parent, os.W_OK):
                raise StoreRefused.at(
                    self.name, f"its newest rows lie in {self.log}, which only who may write there can read"
                ) from error
            raise

    def _connected(self, mode: str) -> SqliteReader:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            timeout=BUSY_S,
            check_same_thread=False,
            factory=SqliteConnection,
        )
        try:
            if not ours(connection):
                raise StoreRefused.at(self.name, f"{self.path} is no headrace store")
            self._check_format(connection)
            soundness.check_schema(connection, self.name)
            connection.execute(f"PRAGMA mmap_size = {MMAP}")
            with soundness.sensible(self.name):
                return SqliteReader(connection, labels_of(connection))
        except BaseException:
            connection.close()
            raise

    def _check_file(self) -> None:
        """SQLite would wait for somebody to write into a FIFO."""
        if self.path.exists() and not self.path.is_file():
            raise StoreRefused.at(self.name, f"{self.path} is no file")

    def _check_format(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT:
            raise StoreRefused.at(
                self.name, f"a store of format {version}; this release of headrace reads format {FORMAT}"
            )

    def create(self, schema: Schema) -> None:
        """Makes the tables and columns that are not there yet; ``StoreError`` where others are."""
        check_schema(schema, self.name)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreRefused.at(self.name, f"{self.path.parent} cannot be made: {error.strerror}") from error
        with self.telling(), closing(self.writing()) as connection:
            with transaction(connection):
                if not ours(connection):
                    _create_tables(connection, schema.labels)
                origins.make_tables(connection)
                there = kinds_of(connection)
                check_labels(schema.labels, labels_of(connection), self.name)
                for name in check_kinds(schema.columns, there, self.name):
                    declared = DECLARED[schema.columns[name]]
                    connection.execute(f"ALTER TABLE metadata ADD COLUMN {quoted(name)} {declared}")
            self.settle(connection)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A context in which SQLite's errors are raised in our words."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.told(error) from error

    def told(self, error: sqlite3.Error, key: str | None = None) -> StoreError:
        """A driver's error in our words: only a lock that is not let go of may pass."""
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        kind = StoreUnavailable if busy else StoreRefused
        at = "" if key is None else f", key {key!r}"
        return kind(f"{self.name}{at}: {one_line(str(error))}", server=self.name, key=key)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction: all of it is there in the end, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def changed(connection: sqlite3.Connection) -> None:
    """Says, within a transaction, that it changes rows. A file of an older release gets its identity now."""
    known = about(connection)
    values = {IDENTITY: known.get(IDENTITY) or new_identity(), REVISION: next_revision(known.get(REVISION, ""))}
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", values.items())


def about(connection: sqlite3.Connection) -> dict[str, str]:
    """The file's description of itself."""
    return dict(connection.execute("SELECT name, value FROM about"))


def _begin_log(connection: sqlite3.Connection) -> None:
    """Rows are written to a log beside the file, so that readers need not wait. SQLite does not wait for those who
    read at this moment, so it is done here.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _create_tables(connection: sqlite3.Connection, labels: LabelKind) -> None:
    label = "label INTEGER, " if labels is LabelKind.INTEGER else ""
    connection.execute(
        "CREATE TABLE samples (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, label, data BLOB NOT NULL)"
    )
    connection.execute(f"CREATE TABLE metadata (key TEXT PRIMARY KEY NOT NULL, {label}bytes INTEGER)")
    connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)")
    connection.execute("INSERT INTO about VALUES ('labels', ?)", (labels.value,))
    changed(connection)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")  # the mark of a store: its tables are there by then


def ours(connection: sqlite3.Connection) -> bool:
    """True for the file of a store."""
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def labels_of(connection: sqlite3.Connection) -> LabelKind:
    """The kind of a store's labels."""
    [text] = connection.execute("SELECT value FROM about WHERE name = 'labels'").fetchone()
    return LabelKind(text)


def kinds_of(connection: sqlite3.Connection) -> dict[str, Kind]:
    """The columns of a store's metadata."""
    described = connection.execute("PRAGMA table_info(metadata)").fetchall()
    return {name: KINDS[declared] for _, name, declared, *_ in described}
