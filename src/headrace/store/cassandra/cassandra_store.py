"""Cassandra as a store."""

import importlib.util
from typing import Any

from headrace.core.errors import MissingDriver
from headrace.store.cassandra.url_options import options
from headrace.store.driver_process.driven_store import ServedStore
from headrace.store.url import StoreUrl, UrlNamed


class CassandraStore(UrlNamed, ServedStore):
    """``cassandra://[user[:password]@]host[:port][,host...]/keyspace/table``; the options are in the documentation."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        options(url)
        if importlib.util.find_spec("acsylla") is None:
            raise MissingDriver("cassandra:// needs the package acsylla: pip install 'headrace[cassandra]'")

    def direct(self) -> Any:
        from headrace.store.cassandra.tables import CassandraTables  # noqa: PLC0415  (it loads the driver)

        return CassandraTables(self._url)
