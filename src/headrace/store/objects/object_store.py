"""The store over objects.

Below the prefix lie ``headrace.json``, which says what the labels and columns are; ``data/KEY``, the payloads, with an
integer label as an attribute of the object; ``labels/KEY``, labels that are blobs; ``metadata/…jsonl``, parts of
the metadata, one for each batch that was written or removed, of which the last that names a key counts; and
``revision``, a text that is another one after every write. A part is written after the objects it names: what has
metadata is there. The revision is written before the objects and after the part: who has read one revision before a
row and after it has the row of that revision, even where a writer died in between.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from headrace.core.errors import BadRow, MissingKey, StoreError, StoreRefused
from headrace.core.options import Retry
from headrace.store.base import (
    Beginning,
    Columns,
    Info,
    Kind,
    Label,
    LabelKind,
    PartialCatalogue,
    Record,
    RemoteStore,
    Row,
    Schema,
    Session,
)
from headrace.store.catalogues.columns import (
    check_kinds,
    check_labels,
    check_record,
    check_schema,
    chosen,
    column,
    describe,
)
from headrace.store.catalogues.known_keys import KnownKeys
from headrace.store.catalogues.origin import RemovingStore
from headrace.store.catalogues.provenance import Provenance, digest_of, new_identity, next_revision
from headrace.store.objects import metadata
from headrace.store.objects.object_driver import Bucket
from headrace.store.reading.background import Background, run_here
from headrace.store.reading.perseverance import Perseverance, each
from headrace.store.shards import recognised
from headrace.store.url import StoreUrl, UrlNamed

ABOUT = "headrace.json"
FORMAT = 1
LABEL = "headrace-label"
REVISION = "revision"


class ObjectStore(UrlNamed, RemoteStore, PartialCatalogue, RemovingStore):
    """``s3://[key_id:secret@]bucket/prefix[?endpoint=http://host:port]``."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._bucket = Bucket(url)

    async def connect(self) -> Session:
        schema = await self._schema()
        return ObjectSession(self._bucket, schema.labels, self.name)

    def keys(self) -> list[str]:
        return list(self.columns([])["key"])

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return run_here(self._columns(names))[0]

    def facts(self, keys: Sequence[str]) -> Columns:
        """The latest line on each; metadata is a log, and for one that was written first all of it is read."""
        wanted = set(keys)
        return run_here(self._latest(wanted, len(wanted)))

    def beginning(self, most: int) -> Beginning:
        """The rows that were written last."""
        return Beginning(run_here(self._latest(None, most)), None)

    def info(self) -> Info:
        columns, schema = run_here(self._columns(None))
        return describe(self.name, columns, schema.labels, schema.columns)

    def provenance(self) -> Provenance:
        """The store's identity, given when it was made, and its revision, which each writer of this package advances.

        A store of an older release has no revision: the parts of its metadata stand for it.
        Payloads that others exchange are not noticed.
        """
        return run_here(self._provenance())

    def close(self) -> None:
        self._bucket.close()

    def create(self, schema: Schema) -> None:
        check_schema(schema, self.name)
        run_here(self._create(schema))

    @contextmanager
    def writer(self) -> "Iterator[ObjectWriter]":
        with closing(Background()) as background:
            schema = background.run(self._schema())
            there = background.run(self._keys())
            last = metadata.last_number(background.run(self._bucket.names(metadata.FOLDER)))
            yield ObjectWriter(self._bucket, schema, there, last, background, self.name)

    async def _provenance(self) -> Provenance:
        again = Perseverance(self.name, Retry(), None)
        identity = (await again.run(None, self._about)).identity
        where = f"s3:{self._url.options.get('endpoint', '')}:{self._url.hosts[0][0]}:{self._url.path.strip('/')}"
        revision = await again.run(None, lambda: revision_in(self._bucket))
        if revision is None:
            revision = digest_of("\n".join(await again.run(None, lambda: self._bucket.states(metadata.FOLDER))))
        return Provenance(identity or where, revision)

    async def _create(self, schema: Schema) -> None:
        about = await self._about()
        known: dict[str, Kind] = {}
        if about.schema is not None:
            check_labels(schema.labels, about.schema.labels, self.name)
            known = dict(about.schema.columns)
        missing = check_kinds(schema.columns, known, self.name)
        if about.schema is None or missing:
            columns = known | {name: schema.columns[name] for name in missing}
            told = {
                "format": FORMAT,
                "identity": about.identity or new_identity(),
                "labels": schema.labels.value,
                "columns": {name: kind.value for name, kind in columns.items()},
            }
            await self._bucket.put(ABOUT, json.dumps(told).encode())

    async def _schema(self) -> Schema:
        found = (await self._about()).schema
        if found is None:
            names = [each.object for each in await self._bucket.listed("", recognised.ENOUGH)]
            index = await self._bucket.look("index.json") if names else None
            text = None
            if index is not None and index.size:
                text = bytes(await self._bucket.read("index.json", 0, min(index.size, recognised.LARGEST), index.etag))
            hint = recognised.told(names, text, self.name)
            raise StoreRefused.at(self.name, f"there is no {ABOUT}: {hint or 'nothing was stored there yet'}")
        return found

    async def _about(self) -> "_StoreSays":
        """The store's description of itself."""
        found = await self._bucket.get(ABOUT)
        if found is None:
            return _StoreSays(None, None)
        try:
            about: dict[str, Any] = json.loads(bytes(found[0]))
            if about["format"] != FORMAT:
                raise StoreRefused.at(
                    self.name, f"a store of format {about['format']}; this release reads format {FORMAT}"
                )
            columns = {str(name): Kind(kind) for name, kind in about["columns"].items()}
            return _StoreSays(about.get("identity"), Schema(LabelKind(about["labels"]), columns))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StoreRefused.at(self.name, f"{ABOUT} makes no sense: {error}") from error

    async def _columns(self, names: Sequence[str] | None) -> tuple[Columns, Schema]:
        schema = await self._schema()
        kinds = _kinds(schema)
        wanted = chosen(names, kinds, self.name)
        values = await metadata.lists(self._bucket, self.name, wanted)
        return self._made({name: values[name] for name in wanted}, kinds), schema

    async def _latest(self, keys: Collection[str] | None, most: int) -> Columns:
        kinds = _kinds(await self._schema())
        rows = await metadata.latest(self._bucket, self.name, keys, most) if most else []
        return self._made({name: [row.get(name) for row in rows] for name in kinds}, kinds)

    def _made(self, values: Mapping[str, Sequence[Any]], kinds: Mapping[str, Kind]) -> Columns:
        try:
            return {name: column(each, kinds[name]) for name, each in values.items()}
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreRefused.at(self.name, f"a part of the metadata is damaged: {error}") from error

    async def _keys(self) -> KnownKeys:
        found = KnownKeys()
        async for row in metadata.rows(self._bucket, self.name):
            found.note([row["key"]], there=metadata.REMOVED not in row)
        return found


class _StoreSays(NamedTuple):
    identity: str | None
    schema: Schema | None
    """None where nothing was stored yet."""


def _kinds(schema: Schema) -> dict[str, Kind]:
    """The kinds of a store's columns, ``key`` first."""
    own = {"label": Kind.INTEGER} if schema.labels is LabelKind.INTEGER else {}
    return {"key": Kind.TEXT, **own, "bytes": Kind.INTEGER, **schema.columns}


class ObjectSession:
    """Reads objects; the client keeps as many connections as there are requests."""

    def __init__(self, bucket: Bucket, labels: LabelKind, store: str) -> None:
        self._bucket = bucket
        self._labels = labels
        self._store = store

    async def get(self, key: str) -> Row:
        try:
            if self._labels is LabelKind.BLOB:
                found, blob = await asyncio.gather(
                    self._bucket.get(path_of("data", key)), self._bucket.get(path_of("labels", key))
                )
            else:
                found, blob = await self._bucket.get(path_of("data", key)), None
        except StoreError as error:
            error.key = key
            raise
        if found is None:
            raise MissingKey(f"{self._store} has no object with the key {key!r}", server=self._store, key=key)
        label: Label = None
        if self._labels is LabelKind.BLOB:
            label = None if blob is None else bytes(blob[0])
        elif self._labels is LabelKind.INTEGER:
            text = found[1].get(LABEL, "")
            label = int(text) if text.removeprefix("-").isdecimal() else None
        if label is None and self._labels is not LabelKind.NONE:
            raise BadRow.at(self._store, f"the object with the key {key!r} has no label", key=key)
        return Row(key, found[0], label)

    async def revision(self) -> str | None:
        """See ``WatchedSession``: None for a store that an older release wrote."""
        return await revision_in(self._bucket)

    def connections(self) -> int:
        return 0

    async def close(self) -> None:
        """The connections are the store's, and end with it."""


class ObjectWriter:
    """Writes objects, then the part of the metadata that names them."""

    def __init__(
        self,
        bucket: Bucket,
        schema: Schema,
        there: KnownKeys,
        last: int,
        background: Background,
        store: str,
    ) -> None:
        self._bucket = bucket
        self._schema = schema
        self._there, self._last = there, last
        self._background = background
        self._store = store
        self._again = Perseverance(store, Retry(), None)

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            check_record(record, self._schema.labels, self._schema.columns, self._store)
        if records:
            self._background.run(self._put(records))
            self._there.note((record.key for record in records), there=True)

    def present(self, keys: Sequence[str]) -> set[str]:
        return self._there.present(keys)

    def remove(self, keys: Sequence[str]) -> int:
        there = sorted(self.present(keys))
        if there:
            self._background.run(self._remove(there))
            self._there.note(there, there=False)
        return len(there)

    async def _remove(self, keys: Sequence[str]) -> None:
        """The objects first: what is interrupted is still listed, and can be removed again."""
        folders = ("data", "labels") if self._schema.labels is LabelKind.BLOB else ("data",)
        await self._advance()
        paths = [path_of(folder, key) for key in keys for folder in folders]
        await each(lambda path: self._again.run(None, lambda: self._bucket.delete(path)), paths)
        await self._append([{"key": key, metadata.REMOVED: None} for key in keys])
        await self._advance()

    async def _advance(self) -> None:
        """Write another revision. Any text but the one that is there will do: of writers at one time the last one's
        stands.
        """
        await self._written(None, REVISION, next_revision("").encode())

    async def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Add one more part to the metadata."""
        self._last = max(time.time_ns(), self._last + 1)  # names are sorted as texts, and the last part counts
        part = f"{metadata.FOLDER}/{self._last:020}-{uuid.uuid4().hex[:8]}.jsonl"
        await self._written(None, part, "\n".join(map(json.dumps, lines)).encode())

    async def _put(self, records: Sequence[Record]) -> None:
        await self._advance()
        await each(self._put_one, records)
        await self._append([self._line(record) for record in records])
        await self._advance()

    async def _put_one(self, record: Record) -> None:
        if isinstance(record.label, bytes):
            await self._written(record.key, path_of("labels", record.key), record.label)
        attributes = {LABEL: str(record.label)} if isinstance(record.label, int) else {}
        await self._written(record.key, path_of("data", record.key), record.payload, attributes)

    async def _written(
        self, key: str | None, path: str, payload: bytes | memoryview, attributes: dict[str, str] | None = None
    ) -> None:
        await self._again.run(key, lambda: self._bucket.put(path, payload, attributes))

    def _line(self, record: Record) -> dict[str, Any]:
        label = {"label": record.label} if isinstance(record.label, int) else {}
        return {"key": record.key, **label, "bytes": len(record.payload), **record.metadata}


async def revision_in(bucket: Bucket) -> str | None:
    """The store's revision; None where no writer has left one."""
    found = await bucket.get(REVISION)
    return None if found is None else bytes(found[0]).decode("utf-8", "replace")


def path_of(folder: str, key: str) -> str:
    """The path of an object. Any text is a key, so what has a meaning in paths is escaped."""
    escaped = quote(key, safe="", errors="surrogatepass")
    # Clients resolve . and .. in a path, and quote() leaves them as they are.
    return f"{folder}/{escaped if key.strip('.') else escaped.replace('.', '%2E')}"
