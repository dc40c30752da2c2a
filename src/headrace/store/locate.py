"""The way from a URL to its store. A store's module and driver are imported when the first URL of its scheme is
opened.
"""

import importlib
from typing import cast

from headrace.core.errors import BadStoreUrl
from headrace.store.base import Store, WritableStore
from headrace.store.url import StoreUrl

SHARDS = "headrace.store.shards.urls:open_shards"
SCHEMES = {
    "sqlite": "headrace.store.sqlite:SqliteStore",
    "file": "headrace.store.folder:FolderStore",
    "cassandra": "headrace.store.cassandra:CassandraStore",
    "s3": "headrace.store.objects:ObjectStore",
    "wds": SHARDS,
    "mds": SHARDS,
    "litdata": SHARDS,
    "parquet": SHARDS,
    "files": SHARDS,
}


def open_store(url: str | StoreUrl) -> Store:
    """The store a URL names. Nothing is connected to or read yet, except to find that a local one is not there.

    Raises ``BadStoreUrl`` or ``MissingDriver``.
    """
    parsed = StoreUrl.parse(url) if isinstance(url, str) else url
    what, plus, _ = parsed.scheme.partition("+")
    named = SCHEMES.get(what)
    if named is None or (plus and named is not SHARDS):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadStoreUrl(
            f"{parsed.redacted}: no store has the scheme {parsed.scheme}://; there are {known}, and of shards, as in "
            "mds+s3:// and wds+https://, any kind in any place"
        )
    module, _, name = named.partition(":")
    return cast("Store", getattr(importlib.import_module(module), name)(parsed))


def open_writable(url: str | StoreUrl) -> WritableStore:
    """The store a URL names, if it takes rows; it need not exist yet."""
    parsed = StoreUrl.parse(url) if isinstance(url, str) else url
    store = open_store(parsed)
    if SCHEMES.get(parsed.scheme.partition("+")[0]) is SHARDS:
        return cast("WritableStore", importlib.import_module("headrace.store.shards.written").open_written(parsed))
    if not isinstance(store, WritableStore):
        raise BadStoreUrl(f"{store.name}: a store with the scheme {store.name.partition(':')[0]}:// can only be read")
    return store
