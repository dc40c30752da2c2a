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
from headrace.store.bridges import Blocking, Threaded
from headrace.store.client import Client, Fetching, Sample
from headrace.store.events import Attempted, Connected, Event, Observer, Retried, Tally
from headrace.store.locate import open_store, open_writable
from headrace.store.provenance import Identified, Provenance
from headrace.store.url import StoreUrl
from headrace.store.wrappers import Limited, Observed, Retrying

__all__ = [
    "Attempted",
    "Blocking",
    "Client",
    "Columns",
    "Connected",
    "Event",
    "Fetched",
    "Fetching",
    "Identified",
    "Info",
    "Kind",
    "LabelKind",
    "Limited",
    "LocalStore",
    "Lost",
    "Observed",
    "Observer",
    "Provenance",
    "Record",
    "RemoteStore",
    "Retried",
    "Retrying",
    "Row",
    "Sample",
    "Schema",
    "Session",
    "Store",
    "StoreUrl",
    "Tally",
    "Threaded",
    "WritableStore",
    "Writer",
    "open_store",
    "open_writable",
]
