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
from headrace.store.catalogues.provenance import Identified, Provenance
from headrace.store.client import Client, Fetching, Sample
from headrace.store.locate import open_store, open_writable
from headrace.store.reading.bridges import Blocking, Threaded
from headrace.store.reading.events import Attempted, Connected, Event, Observer, Retried, Tally
from headrace.store.reading.wrappers import Limited, Observed, Retrying
from headrace.store.url import StoreUrl

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
