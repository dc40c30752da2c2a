"""From a URL to its store. A store's module and driver are imported when the first URL of its scheme is opened."""

import importlib
from typing import cast

from headrace.core.errors import BadStoreUrl
from headrace.store.base import Store, WritableStore
from headrace.store.url import StoreUrl

SCHEMES = {
    "sqlite": "headrace.store.sqlite:SqliteStore",
    "file": "headrace.store.folder:FolderStore",
    "cassandra": "headrace.store.cassandra:CassandraStore",
    "s3": "headrace.store.objects:ObjectStore",
    "wds": "headrace.store.webdataset:TarStore",
    "mds": "headrace.store.mds:MdsStore",
}


def open_store(url: str | StoreUrl) -> Store:
    """The store a URL names. Nothing is connected to or read yet, except to find that a local one is not there.

    Raises ``BadStoreUrl`` or ``MissingDriver``.
    """
    parsed = StoreUrl.parse(url) if isinstance(url, str) else url
    if parsed.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadStoreUrl(f"{parsed.redacted}: no store has the scheme {parsed.scheme}://; there are {known}")
    module, _, name = SCHEMES[parsed.scheme].partition(":")
    return cast("Store", getattr(importlib.import_module(module), name)(parsed))


def open_writable(url: str | StoreUrl) -> WritableStore:
    """The store a URL names, if it takes rows; it need not exist yet."""
    store = open_store(url)
    if not isinstance(store, WritableStore):
        raise BadStoreUrl(f"{store.name}: a store with the scheme {store.name.partition(':')[0]}:// can only be read")
    return store
