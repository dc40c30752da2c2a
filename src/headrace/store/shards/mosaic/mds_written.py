"""Samples as MDS: columns ``data`` and ``label``, the metadata, and ``__key__``, which is what a sample was called."""

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from headrace.core.errors import StoreError, StoreRefused
from headrace.store.base import Kind, LabelKind, Record, Schema
from headrace.store.shards.places.targets import ShardTarget

INDEX = "index.json"
KEY = "__key__"
SHARD_BYTES = 1 << 26
_CODED = {
    Kind.INTEGER: ("int", 8),
    Kind.NUMBER: ("float64", 8),
    Kind.TEXT: ("str", None),
    Kind.TRUTH: ("uint8", 1),
}


class MdsWritten:
    """Writer of samples with one schema as MDS."""

    def __init__(self, schema: Schema, store: str) -> None:
        if KEY in schema.columns:
            raise StoreError.at(store, f"a metadata column cannot be called {KEY!r} here; rename it")
        self._store, self._kinds = store, schema.columns
        columns: dict[str, tuple[str, int | None]] = {KEY: ("str", None), "data": ("bytes", None)}
        columns |= {name: _CODED[kind] for name, kind in schema.columns.items()}
        if schema.labels is not LabelKind.NONE:
            columns["label"] = ("int", 8) if schema.labels is LabelKind.INTEGER else ("bytes", None)
        self._columns = dict(sorted(columns.items()))  # as MosaicML's own writer sorts them
        self._about: dict[str, Any] = {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": SHARD_BYTES,
            "column_names": list(self._columns),
            "column_encodings": [encoding for encoding, _ in self._columns.values()],
            "column_sizes": [size for _, size in self._columns.values()],
        }

    def sample(self, record: Record) -> bytes:
        """A sample as it lies in a shard. Raises ``StoreError`` where it cannot be one."""
        values = [self._coded(name, record) for name in self._columns]
        varying = [len(value) for value, (_, size) in zip(values, self._columns.values(), strict=True) if size is None]
        return struct.pack(f"<{len(varying)}I", *varying) + b"".join(values)

    def shard(self, samples: Sequence[bytes]) -> bytes:
        """A shard of them."""
        about = json.dumps(self._about, sort_keys=True).encode()
        offsets = list(accumulate(map(len, samples), initial=4 * (len(samples) + 2) + len(about)))
        return struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + about + b"".join(samples)

    def name(self, number: int) -> str:
        return f"shard.{number:05}.mds"

    def keep(self, target: ShardTarget, made: Sequence[tuple[str, int, int]]) -> None:
        """Names new shards in the index, by name, size and samples: they are part of the dataset from then on."""
        entries = [
            {
                **self._about,
                "samples": samples,
                "zip_data": None,
                "raw_data": {"basename": name, "bytes": size, "hashes": {}},
            }
            for name, size, samples in made
        ]
        index = {"version": 2, "shards": [*self._entries(target), *entries]}
        target.put(INDEX, json.dumps(index, sort_keys=True).encode())

    def count(self, target: ShardTarget) -> int:
        """The shards that the index names."""
        return len(self._entries(target))

    def key_of(self, key: str) -> str:
        """The name of a key in ``finished``."""
        return key

    def finished(self, reading: Any) -> Iterator[str]:
        """The keys of what is there, from its store."""
        yield from reading.columns([KEY])[KEY].tolist()

    def _entries(self, target: ShardTarget) -> list[Any]:
        found = target.get(INDEX)
        if found is None:
            return []
        try:
            entries = json.loads(found)["shards"]
            wanted = [self._about[f"column_{what}"] for what in ("names", "encodings", "sizes")]
            for entry in entries:
                if [entry[f"column_{what}"] for what in ("names", "encodings", "sizes")] != wanted:
                    raise StoreRefused.at(
                        self._store,
                        "the shards that are there have other columns: write to another place, or a new one",
                    )
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise StoreRefused.at(self._store, f"{INDEX} makes no sense: {error}") from error
        return list(entries)

    def _coded(self, name: str, record: Record) -> bytes:
        if name == KEY:
            return record.key.encode()
        if name == "data":
            return bytes(record.payload)
        if name == "label":
            label = record.label
            return label if isinstance(label, bytes) else struct.pack("<q", label)
        value, kind = record.metadata.get(name), self._kinds[name]
        if kind is Kind.TEXT:
            return b"" if value is None else str(value).encode()
        if kind is Kind.NUMBER:
            return struct.pack("<d", float("nan") if value is None else value)
        if value is None:
            told = f"column {name!r} has no value, and MDS knows no missing {kind.value}: leave the column out"
            raise StoreError.at(self._store, f"{told} (key {record.key!r})", key=record.key)
        return struct.pack("<q" if kind is Kind.INTEGER else "<B", value)
