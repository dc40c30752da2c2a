"""Shards that are written: a store that takes rows, over the one that reads them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import BadStoreUrl, StoreRefused
from headrace.store.base import Columns, Info, Kind, LabelKind, Schema, SettlingStore, Store
from headrace.store.catalogues.columns import check_labels, check_schema, chosen, column, describe
from headrace.store.catalogues.forwarded import Forwarded
from headrace.store.catalogues.known_keys import KnownKeys
from headrace.store.shards import spool
from headrace.store.shards.mosaic.mds_written import MdsWritten
from headrace.store.shards.places.targets import BucketTarget, FolderTarget, ShardTarget
from headrace.store.shards.spool import ShardWriter, WrittenFormat
from headrace.store.shards.tar_shards.tar_written import TarsWritten
from headrace.store.shards.urls import open_shards, parted, place_of
from headrace.store.url import StoreUrl

SCHEMA = "headrace-schema.json"
FORMATS: Mapping[str, Callable[[Schema, str], WrittenFormat]] = {"mds": MdsWritten, "wds": TarsWritten}


def open_written(url: StoreUrl) -> "WrittenShards":
    """The store that a URL names, to write to. Raises ``BadStoreUrl`` or ``MissingDriver``."""
    what, where, known = place_of(url)
    folder, names = parted(url.path, known.suffixes)
    besides = sorted({"split", "streams"} & url.options.keys())
    if what not in FORMATS or names or besides or where in {"https", "http"}:
        written = ", ".join(f"{name}+s3://bucket/prefix, {name}+file:///folder" for name in FORMATS)
        raise BadStoreUrl.at(url.redacted, f"this can only be read; shards are written to {written} and the like")
    reading = open_shards(url)
    if where == "file":
        return WrittenShards(reading, FolderTarget(Path(folder), url.redacted), what)
    from headrace.store.objects.object_driver import Bucket  # noqa: PLC0415  (an extra)

    return WrittenShards(reading, BucketTarget(Bucket(url, where, known.options, folder), url.redacted), what)


class WrittenShards(Forwarded, SettlingStore):
    """``mds+s3://bucket/prefix``, ``wds+file:///folder``: new shards beside those that were written before.

    Rows are in shards, and seen by readers, once ``settle`` was called. Its columns are those that it was made with.
    """

    _store: Store

    def __init__(self, reading: Store, target: ShardTarget, what: str) -> None:
        self._store, self._target, self._what = reading, target, what

    def keys(self) -> list[str]:
        return self._store.keys() if self._has_shards() else []

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        if self._has_shards():
            return self._store.columns(names)
        schema = self._schema()
        own = {"label": Kind.INTEGER} if schema.labels is LabelKind.INTEGER else {}
        kinds = {"key": Kind.TEXT, **own, **schema.columns}
        return {name: column([], kinds[name]) for name in chosen(names, kinds, self.name)}

    def info(self) -> Info:
        if self._has_shards():
            return self._store.info()
        schema = self._schema()
        return describe(self.name, self.columns(), schema.labels, schema.columns)

    def create(self, schema: Schema) -> None:
        check_schema(schema, self.name)
        found = self._target.get(SCHEMA)
        if found is None:
            if self._has_shards():
                raise StoreRefused.at(
                    self.name, "there are shards that others wrote: write to another place, or a new one"
                )
            FORMATS[self._what](schema, self.name)  # refuses what cannot be written
            self._target.put(SCHEMA, spool.schema_text(schema))
            return
        there = spool.schema_of(found, self.name)
        check_labels(schema.labels, there.labels, self.name)
        for name, kind in schema.columns.items():
            if there.columns.get(name) is not kind:
                told = (
                    "has no such column"
                    if name not in there.columns
                    else f"has {there.columns[name].value} values there"
                )
                raise StoreRefused.at(self.name, f"{name!r} {told}, and shards that are written stay as they are")

    @contextmanager
    def writer(self) -> Iterator[ShardWriter]:
        schema = self._schema()
        laid_out = FORMATS[self._what](schema, self.name)
        yield ShardWriter(self._target, schema, laid_out, self._finished(laid_out), self.name)

    def settle(self) -> bool:
        if self._target.names(spool.PARTS):
            laid_out = FORMATS[self._what](self._schema(), self.name)
            spool.settle(self._target, laid_out, self._finished(laid_out), self.name)
        self._store.close()
        return True

    def _finished(self, laid_out: WrittenFormat) -> KnownKeys:
        known = KnownKeys()
        self._store.close()
        if self._has_shards():
            known.note(laid_out.finished(self._store), there=True)
        return known

    def _has_shards(self) -> bool:
        """True if there is something to read."""
        if self._what == "mds":
            return self._target.get("index.json") is not None
        return any(name.endswith(".tar") for name in self._target.names(""))

    def _schema(self) -> Schema:
        found = self._target.get(SCHEMA)
        if found is None:
            raise StoreRefused.at(self.name, "nothing was stored there yet")
        return spool.schema_of(found, self.name)
