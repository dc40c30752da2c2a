"""Origins of rows, in tables beside them. A file of an older release gets these tables when it is written to."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from headrace.store.catalogues.origin import Origin

MOST_ALIKE = 4
"""Rows that are told of one place or content."""
_FIELDS = "s.name, s.root, o.place, o.content, o.made, o.run"
_JOINED = f"SELECT d.key, {_FIELDS} FROM origins o JOIN sources s ON s.id = o.source JOIN samples d ON d.id = o.id"
"""By the number of the sample: an index of keys more would be written all over the file for every few rows."""


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables, within a transaction; nothing happens where they are there."""
    connection.execute("CREATE TABLE IF NOT EXISTS sources (id INTEGER PRIMARY KEY, name TEXT NOT NULL, root TEXT)")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS origins (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, "
        "place TEXT NOT NULL, content BLOB NOT NULL, made TEXT NOT NULL, run TEXT NOT NULL)"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS classes (name TEXT PRIMARY KEY NOT NULL, number INTEGER UNIQUE)")


def there(connection: sqlite3.Connection) -> bool:
    """True if the file has these tables."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('sources', 'origins', 'classes')"
    return bool(connection.execute(query).fetchone()[0] == 3)


class Origins:
    """A writer's view of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[tuple[str, str | None], int] = {}

    def put(self, rows: Sequence[tuple[str, Origin | None]]) -> None:
        """Put the origins of rows, within a transaction; a row without an origin loses the one that it had."""
        known = [(key, origin) for key, origin in rows if origin is not None]
        self.remove([key for key, origin in rows if origin is None])
        values = [(key, self._number(o.source, o.root), o.place, o.content, o.made, o.run) for key, o in known]
        query = "INSERT OR REPLACE INTO origins VALUES ((SELECT id FROM samples WHERE key = ?), ?, ?, ?, ?, ?)"
        self._connection.executemany(query, values)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the origins of rows, within a transaction, before the samples themselves are gone."""
        query = "DELETE FROM origins WHERE id = (SELECT id FROM samples WHERE key = ?)"
        self._connection.executemany(query, [(key,) for key in keys])

    def of(self, keys: Sequence[str]) -> dict[str, Origin]:
        """Origins among ``keys``; keys without one are omitted."""
        marks = ", ".join("?" * len(keys))
        query = f"{_JOINED} WHERE d.key IN ({marks})"
        return {key: Origin(*fields) for key, *fields in self._connection.execute(query, list(keys))}

    def alike(self, origin: Origin) -> dict[str, Origin]:
        """Rows of other runs at the same place, or with the same content."""
        found: dict[str, Origin] = {}
        for field, value in (("place", origin.place), ("content", origin.content)):
            query = f"{_JOINED} WHERE o.{field} = ? AND o.run != ? LIMIT {MOST_ALIKE}"
            found |= {key: Origin(*fields) for key, *fields in self._connection.execute(query, (value, origin.run))}
        return found

    def any_before(self, run: str) -> bool:
        """True if a row of another run exists, which can then be searched for.

        A writer that fills an empty store needs no indexes, and does not pay for them.
        """
        if self._connection.execute("SELECT 1 FROM origins WHERE run != ? LIMIT 1", (run,)).fetchone() is None:
            return False
        for field in ("place", "content"):
            self._connection.execute(f"CREATE INDEX IF NOT EXISTS origins_by_{field} ON origins ({field})")
        return True

    def _number(self, name: str, root: str | None) -> int:
        if (name, root) not in self._numbers:
            query = "SELECT id FROM sources WHERE name = ? AND root IS ?"
            found = self._connection.execute(query, (name, root)).fetchone()
            if found is None:
                cursor = self._connection.execute("INSERT INTO sources (name, root) VALUES (?, ?)", (name, root))
                found = (cursor.lastrowid,)
            self._numbers[name, root] = int(found[0])
        return self._numbers[name, root]

    def forget_numbers(self) -> None:
        """Forget the sources' numbers, after a transaction that was undone."""
        self._numbers.clear()


def listed(connection: sqlite3.Connection) -> Iterator[tuple[str, Origin]]:
    """Yield every key with its origin."""
    for key, *fields in connection.execute(f"{_JOINED} ORDER BY o.id"):
        yield key, Origin(*fields)


def name_classes(connection: sqlite3.Connection, numbers: Mapping[str, int]) -> None:
    """Name classes, within a transaction. One that is there keeps its number."""
    connection.executemany("INSERT OR IGNORE INTO classes VALUES (?, ?)", numbers.items())
