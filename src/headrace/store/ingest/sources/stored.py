"""Sources that lie in another store: class folders, WebDataset tars, MDS shards, a database that is to be copied."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.core.errors import IngestError, StoreError
from headrace.store.base import Columns, Kind, LabelKind
from headrace.store.catalogues.columns import CLASS, OWN, plain
from headrace.store.catalogues.origin import NamingStore
from headrace.store.folder import FolderStore
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.fields import PATH
from headrace.store.ingest.sources.item_source import Item, Loaded, SourceShape, Where
from headrace.store.locate import open_store
from headrace.store.reading.bridges import blocking
from headrace.store.url import StoreUrl

NUMBERED = {"mds", "parquet", "litdata"}
FILES = {"file", "files", "wds", *NUMBERED}
"""What has keys that are places in files, or numbers: samples get keys of their own when they move into a database."""


class StoredSource:
    """A store as a source. Classes are taken by name where it has names for them."""

    def __init__(self, url: str, reading: ReadOptions) -> None:
        other = ("label", "label_files", "root", "types", "path_column")
        reading.refuse(other, f"stores: {StoreUrl.parse(url)} is no manifest")
        parsed = StoreUrl.parse(url)
        if reading.extensions:
            if not parsed.scheme.startswith("file"):
                raise IngestError("extensions choose the files of a folder")
            parsed = replace(parsed, options={**parsed.options, "extensions": ",".join(reading.extensions)})
        self.name = parsed.redacted
        what = parsed.scheme.partition("+")[0]
        self._files = what in FILES
        folder, _, self._base = parsed.path.rstrip("/").rpartition("/")
        self._named = what in {"file", "files"}
        root = (folder or "/") if parsed.scheme == "file" else None
        self.where = Where(self.name, root, threads=parsed.scheme in {"file", "sqlite"})
        self._reading = reading
        self._store = blocking(open_store(parsed))
        self._columns: Columns | None = None

    def shape(self) -> SourceShape:
        info = self._store.info()
        named = CLASS in info.columns and info.labels is LabelKind.INTEGER
        columns = self._table()
        kinds = {name: kind for name, kind in info.columns.items() if self._kept(name)}
        if self._files:
            kinds[PATH] = Kind.TEXT
        if not named:
            return SourceShape(info.labels, kinds, None, info.rows, distinct=self._reading.key is None)
        pairs = zip(columns[CLASS].tolist(), columns["label"].tolist(), strict=True)
        numbers = {name: number for name, number in pairs if name is not None}
        if isinstance(self._store, NamingStore):
            numbers = {**self._store.class_numbers(), **numbers}
        return SourceShape(info.labels, kinds, tuple(sorted(numbers)), info.rows, numbers, self._reading.key is None)

    def items(self) -> Iterator[Item]:
        lists: dict[str, list[Any]] = {name: values.tolist() for name, values in self._table().items()}
        if self._files:
            lists[PATH] = lists["key"]
        metadata = [name for name in lists if name not in OWN and (name == PATH or self._kept(name))]
        labels, named_by = lists.get("label"), self._reading.key
        names = lists.get(CLASS) or [None] * len(lists["key"])
        keys = None if self._files and named_by is None else lists[named_by or "key"]
        for row, key in enumerate(lists["key"]):
            values = {name: plain(lists[name][row]) for name in metadata}
            ident = f"{self._base}/{key}" if self._files else key
            own = None if keys is None or plain(keys[row]) is None else str(keys[row])
            problem = f"it has no {named_by}" if keys is not None and not own else None
            label = None if labels is None else labels[row] if names[row] is None else names[row]
            yield Item(ident, key, label, values, own, problem)

    def load(self, item: Item) -> Loaded:
        row = self._store.get(item.place)
        label = row.label if isinstance(row.label, bytes) else None
        return Loaded(bytes(row.payload), label, item.place if self._named else "")

    def left_out(self) -> list[str]:
        return self._store.left_out() if isinstance(self._store, FolderStore) else []

    def close(self) -> None:
        self._store.close()

    def _kept(self, name: str) -> bool:
        return name == CLASS or self._reading.columns is None or name in self._reading.columns

    def _table(self) -> Columns:
        if self._columns is None:
            self._columns = self._store.columns()
            wanted = [*(self._reading.columns or ()), *([self._reading.key] if self._reading.key else [])]
            there = [*self._columns, *([PATH] if self._files else [])]
            for name in wanted:
                if name not in there:
                    raise StoreError(f"{self.name} has no column {name!r}; it has {', '.join(there)}", server=self.name)
        return self._columns
