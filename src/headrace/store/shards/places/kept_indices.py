"""Indices of shards that took time to make, in a file of this machine: found again by place, name, size and state."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from headrace.store.shards.shard import Listed

WAIT_SECONDS = 5.0


def usual_place() -> Path:
    """The place of the file if nobody says otherwise."""
    return Path.home() / ".cache" / "headrace" / "shards.sqlite"


class KeptIndices:
    """A hint: where the file cannot be read or written, or is damaged, everything is made anew."""

    def __init__(self, path: Path, place: str) -> None:
        """``place``: names the bucket and prefix."""
        self._path, self._place = path, place

    def get(self, listed: Listed) -> bytes | None:
        """The index that was kept of that object, in that state; None where there is none."""
        with suppress(sqlite3.Error, OSError), self._opened() as database:
            row = database.execute(
                "SELECT made FROM indices WHERE place = ? AND object = ? AND size = ? AND etag = ?",
                (self._place, *listed),
            ).fetchone()
            return row[0] if row is not None and isinstance(row[0], bytes) else None
        return None

    def put(self, listed: Listed, made: bytes) -> None:
        """Keeps it, instead of what was kept of that object in an earlier state."""
        with suppress(sqlite3.Error, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS indices(place TEXT, object TEXT, size INTEGER, etag TEXT, made BLOB, "
                    "PRIMARY KEY(place, object))"
                )
                database.execute("INSERT OR REPLACE INTO indices VALUES(?, ?, ?, ?, ?)", (self._place, *listed, made))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=WAIT_SECONDS)) as database, database:
            yield database
