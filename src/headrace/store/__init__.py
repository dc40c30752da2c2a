"""Samples by key: where they are kept, with their labels and metadata, and how they are fetched."""

from headrace.store.base import (
    Columns,
    Fetched,
    Info,
    Kind,
    LabelKind,
    LocalStore,
    Lost,
    Record,
    RemoteStore,
    Row,
    Schema,
    Session,
    Store,
    WritableStore,
    Writer,
)
from headrace.store.locate import open_store, open_writable
from headrace.store.url import StoreUrl

__all__ = [
    "Columns",
    "Fetched",
    "Info",
    "Kind",
    "LabelKind",
    "LocalStore",
    "Lost",
    "Record",
    "RemoteStore",
    "Row",
    "Schema",
    "Session",
    "Store",
    "StoreUrl",
    "WritableStore",
    "Writer",
    "open_store",
    "open_writable",
]
