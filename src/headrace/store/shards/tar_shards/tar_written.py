"""Samples as WebDataset tars: the payload, ``.cls`` or ``.label``, and ``.json`` with the metadata."""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from headrace.core.errors import StoreError
from headrace.store.base import Record, Schema
from headrace.store.contents import extension
from headrace.store.shards.places.targets import ShardTarget

END = bytes(1024)


class TarsWritten:
    """Writer of samples as tars."""

    def __init__(self, schema: Schema, store: str) -> None:
        self._store = store

    def sample(self, record: Record) -> bytes:
        """The files of a sample with their headers. Raises ``StoreError`` where a text cannot be written."""
        files: list[tuple[str, bytes | memoryview]] = [(extension(record.payload), record.payload)]
        if isinstance(record.label, int):
            files.append(("cls", str(record.label).encode()))
        elif record.label is not None:
            files.append(("label", record.label))
        told = {name: value for name, value in record.metadata.items() if value is not None}
        name = self.key_of(record.key)
        if name != record.key:
            told["__key__"] = record.key
        if told:
            files.append(("json", json.dumps(told).encode()))
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for kind, content in files:
                member = tarfile.TarInfo(f"{name}.{kind}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            length = tar.offset
        return raw.getvalue()[:length]

    def shard(self, samples: Sequence[bytes]) -> bytes:
        """A tar of them."""
        return b"".join(samples) + END

    def name(self, number: int) -> str:
        return f"shard-{number:06}.tar"

    def keep(self, target: ShardTarget, made: Sequence[tuple[str, int, int]]) -> None:
        """A folder of tars has no index."""

    def count(self, target: ShardTarget) -> int:
        return len([name for name in target.names("") if name.endswith(".tar")])

    def key_of(self, key: str) -> str:
        """A key as the name of files, which ends at its first dot. No two are the same."""
        folders = not (key.startswith("/") or key.endswith("/") or "//" in key)
        try:
            name = quote(key, safe="/ " if folders else " ").replace(".", "%2E") or "%"
        except UnicodeEncodeError:
            raise StoreError.at(self._store, f"the key {key!r:.60} cannot be the name of a file", key=key) from None
        return f"%5F{name[1:]}" if name.startswith("__") else name  # WebDataset passes over such folders

    def finished(self, reading: Any) -> Iterator[str]:
        yield from reading.keys()
