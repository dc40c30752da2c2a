"""Splits of what is in a store: its metadata, and where the file says it came from."""

from contextlib import closing
from dataclasses import replace

from headrace.store.base import Columns
from headrace.store.locate import open_store
from headrace.store.splits.result import Splits
from headrace.store.url import StoreUrl


def metadata(url: str) -> tuple[Columns, StoreUrl]:
    """All columns of a store; no payload is read. Raises ``StoreError``."""
    parsed = StoreUrl.parse(url)
    with closing(open_store(parsed)) as store:
        return store.columns(), parsed


def noted(splits: Splits, source: StoreUrl) -> Splits:
    """The splits with the store they were made from among their facts, without its password."""
    table = source.path.strip("/").replace("/", ".") if source.scheme == "cassandra" else None
    return replace(splits, facts={"store": source.redacted, "table": table, **splits.facts})
