"""The embedded store: samples and metadata in one SQLite file, written in transactions, read by any process."""

from headrace.store.sqlite.sqlite_store import SqliteStore

__all__ = ["SqliteStore"]
