"""Samples on their way into shards: written in parts as they come, put together into shards when all writers are done.

A part is written whole or not at all, so what a writer has put stays, whatever kills it; and shards are as large as
readers want them, however little was put at a time.
"""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.core.errors import StoreRefused
from headrace.store.base import Kind, LabelKind, Record, Schema
from headrace.store.catalogues.columns import check_record
from headrace.store.catalogues.known_keys import KnownKeys
from headrace.store.shards.places.targets import ShardTarget

PARTS = "headrace-parts"
SHARD_BYTES = 1 << 26
"""Of a shard, about."""


class WrittenFormat(Protocol):
    """A layout of samples of one schema in shards."""

    def sample(self, record: Record) -> bytes:
        """A sample as it lies in a shard. Raises ``StoreError``."""
        ...

    def shard(self, samples: Sequence[bytes]) -> bytes: ...

    def name(self, number: int) -> str:
        """The name of the shard with that number."""
        ...

    def keep(self, target: ShardTarget, made: Sequence[tuple[str, int, int]]) -> None:
        """Makes new shards a part of the dataset: their names, sizes and numbers of samples."""
        ...

    def count(self, target: ShardTarget) -> int:
        """The shards that are part of the dataset."""
        ...

    def key_of(self, key: str) -> str:
        """The name in ``finished`` of a sample with that key."""
        ...

    def finished(self, reading: Any) -> Iterator[str]:
        """The samples that are in shards, from the store that reads these."""
        ...


class ShardWriter:
    """Writes parts. Rows are added, and never replaced."""

    def __init__(
        self, target: ShardTarget, schema: Schema, laid_out: WrittenFormat, known: KnownKeys, store: str
    ) -> None:
        """``known``: what is in shards."""
        self._target, self._schema, self._format, self._known, self._store = target, schema, laid_out, known, store
        self._seen: set[str] = set()  # parts whose keys are known

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            check_record(record, self._schema.labels, self._schema.columns, self._store)
        latest = {record.key: record for record in records}
        there = self.present(list(latest))
        if there:
            raise StoreRefused.at(
                self._store, f"rows in shards cannot be replaced, and {min(there)!r} is there: write to another place"
            )
        if latest:
            samples = [self._format.sample(record) for record in latest.values()]
            name = f"{PARTS}/{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
            self._target.put(name, packed(list(latest), samples))
            self._note(name, list(latest))

    def present(self, keys: Sequence[str]) -> set[str]:
        for name in self._target.names(PARTS):  # another process may have written what it was to write, and died
            if name not in self._seen:
                content = self._target.get(name)
                if content is not None:
                    self._note(name, [key for key, _ in unpacked_part(content, self._store)])
        names = {self._format.key_of(key): key for key in keys}
        return {names[name] for name in self._known.present(list(names))}

    def _note(self, name: str, keys: Sequence[str]) -> None:
        self._seen.add(name)
        self._known.note(map(self._format.key_of, keys), there=True)


def settle(target: ShardTarget, laid_out: WrittenFormat, known: KnownKeys, store: str) -> None:
    """Puts all parts together into shards. May be broken off anywhere and done again: no sample is there twice."""
    parts = target.names(PARTS)
    made: list[tuple[str, int, int]] = []
    samples: list[bytes] = []
    number = laid_out.count(target)

    def write() -> None:
        name, shard = laid_out.name(number + len(made)), laid_out.shard(samples)
        target.put(name, shard)
        made.append((name, len(shard), len(samples)))
        samples.clear()

    held = 0
    for part in parts:
        for key, sample in unpacked_part(target.get(part) or b"", store):
            if known.present([laid_out.key_of(key)]):
                continue
            known.note([laid_out.key_of(key)], there=True)
            samples.append(sample)
            held += len(sample)
            if held >= SHARD_BYTES:
                write()
                held = 0
    if samples:
        write()
    if made:
        laid_out.keep(target, made)
    for part in parts:
        target.delete(part)


def packed(keys: Sequence[str], samples: Sequence[bytes]) -> bytes:
    """A part: the length of its head, the head in JSON, and the samples one after the other."""
    head = json.dumps({"keys": list(keys), "sizes": list(map(len, samples))}).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(samples)


def unpacked_part(content: bytes, store: str) -> list[tuple[str, bytes]]:
    """The keys and samples of a part. Raises ``StoreRefused`` where it is none."""
    try:
        at = 8 + int.from_bytes(content[:8], "little")
        head = json.loads(content[8:at])
        found = []
        for key, size in zip(head["keys"], head["sizes"], strict=True):
            if type(size) is not int or not 0 <= size <= len(content) - at or not isinstance(key, str):
                raise ValueError(f"it ends within the sample {key!r:.60}")
            found.append((key, content[at : at + size]))
            at += size
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreRefused.at(store, f"a part in {PARTS}/ is damaged: {error}") from error
    return found


def schema_text(schema: Schema) -> bytes:
    """A schema as it is kept beside the shards."""
    columns = {name: kind.value for name, kind in schema.columns.items()}
    return json.dumps({"labels": schema.labels.value, "columns": columns}).encode()


def schema_of(text: bytes, store: str) -> Schema:
    """The schema that ``schema_text`` made a text of. Raises ``StoreRefused``."""
    try:
        found = json.loads(text)
        return Schema(LabelKind(found["labels"]), {str(name): Kind(kind) for name, kind in found["columns"].items()})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreRefused.at(store, f"its schema makes no sense: {error}") from error
