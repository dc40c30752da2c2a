"""The common part of stores over shards, whatever the format and wherever they lie: keys, metadata, state."""

import os
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from headrace.core.errors import BadRow, MissingKey, StoreError, StoreRefused
from headrace.store.base import Beginning, Columns, Info, Kind, PartialCatalogue
from headrace.store.catalogues.columns import CLASS, chosen, column, describe, own_columns
from headrace.store.catalogues.provenance import Provenance, digest_of
from headrace.store.shards.formats import Format, OpenedShards, Sectioned
from headrace.store.shards.shard import DamagedShard, Shard, Steps
from headrace.store.url import StoreUrl, UrlNamed

T = TypeVar("T")

TABLES = 1 << 26
"""Bytes of tables that are kept."""
BLOCKS = 1 << 28
"""Bytes of blocks that are kept, of shards whose samples cannot be read one by one."""
FAULTS = (DamagedShard, OSError, LookupError, ValueError)
"""What is raised of shards that are not what they should be."""


class ShardPlace(Protocol):
    """A place where shards lie."""

    @property
    def identity(self) -> str:
        """The place, without who reads it."""
        ...

    def close(self) -> None: ...


class ShardCatalogue(UrlNamed, PartialCatalogue):
    """Keys and metadata, and when the index is read: each process looks whether it is still true, until ``close``."""

    def __init__(self, url: StoreUrl, shards: Format, place: ShardPlace) -> None:
        self._url, self._format, self._place = url, shards, place
        self._opened: OpenedShards | None = None
        self._looked = 0

    def keys(self) -> list[str]:
        return self._open().keys()

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return self._columns(self._open(), names)

    def facts(self, keys: Sequence[str]) -> Columns:
        """The shards that have them are read for it, or all, where a format's metadata is in one piece."""
        opened = self._open()
        if not isinstance(opened, Sectioned):
            return _picked(self._columns(opened, None), set(keys))
        kinds: dict[str, Kind] = self._run(opened.kinds())
        places = {place: None for key in keys if (place := opened.find(key)) is not None}
        parts = {shard: self._run(opened.section(shard, list(kinds))) for shard in {shard for shard, _ in places}}
        return {
            name: column([parts[shard][name][position] for shard, position in places], kind)
            for name, kind in kinds.items()
        }

    def beginning(self, most: int) -> Beginning:
        """The samples of the first shards."""
        opened = self._open()
        counts = opened.counts()
        if not isinstance(opened, Sectioned):
            first = {name: each[:most] for name, each in self._columns(opened, None).items()}
            return Beginning(first, sum(counts))
        kinds: dict[str, Kind] = self._run(opened.kinds())
        found: dict[str, list[Any]] = {name: [] for name in kinds}
        for shard in range(len(counts)):
            if len(found["key"]) >= most:
                break
            part = self._run(opened.section(shard, list(kinds)))
            for name, values in found.items():
                values.extend(part[name][: most - len(values)])
        return Beginning({name: column(values, kinds[name]) for name, values in found.items()}, sum(counts))

    def info(self) -> Info:
        opened = self._open()
        kinds: dict[str, Kind] = self._run(opened.kinds())
        needed = [name for name in ("label", "bytes", CLASS) if name in kinds]
        return describe(self.name, self._columns(opened, needed), opened.labels, own_columns(kinds))

    def provenance(self) -> Provenance:
        """The shards' place, what is read of them, and the state of each."""
        self._looked = 0
        return self._told(self._open())

    def _told(self, opened: OpenedShards) -> Provenance:
        states = "\n".join(f"{each.object} {each.size} {each.etag}" for each in opened.files)
        return Provenance(f"{self._format.identity}:{self._place.identity}", digest_of(states))

    def prepare(self) -> None:
        """Reads the index, so that a copy of this store has it: a session may not take as long as that may."""
        self._open()

    def close(self) -> None:
        """The index is kept, and read again where a shard has changed since."""
        self._looked = 0
        self._place.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_looked": 0}

    def _columns(self, opened: OpenedShards, names: Sequence[str] | None) -> Columns:
        kinds: dict[str, Kind] = self._run(opened.kinds())
        wanted = chosen(names, kinds, self.name)
        found = {"key": opened.keys(), **(self._run(opened.columns(wanted[1:])) if wanted[1:] else {})}
        return {name: column(found[name], kinds[name]) for name in wanted}

    def _open(self) -> OpenedShards:
        if self._opened is None or self._looked != os.getpid():
            self._opened = self._run(self._format.opened(self._opened))
            self._looked = os.getpid()
        return self._opened

    def _run(self, steps: Steps[Any]) -> Any:
        try:
            return self._ran(steps)
        except StoreError:
            raise
        except FAULTS as error:
            raise StoreRefused.at(self.name, one_line(error)) from error

    @abstractmethod
    def _ran(self, steps: Steps[T]) -> T:
        """The result of the parser, which is run where the shards are."""


def _picked(columns: Columns, keys: Collection[str]) -> Columns:
    rows = [row for row, key in enumerate(columns["key"].tolist()) if key in keys]
    return {name: each[rows] for name, each in columns.items()}


def missing(store: str, key: str) -> MissingKey:
    """The error of a key that no sample has."""
    return MissingKey(f"{store} has no sample {key!r}", server=store, key=key)


def bad(store: str, key: str, shard: Shard, error: Exception) -> BadRow:
    """The error of a sample that is there and cannot be read: it names sample and shard."""
    return BadRow.at(store, f"sample {key!r} of {shard.object!r} cannot be read: {one_line(error)}", key=key)


def one_line(error: Exception) -> str:
    """The error's words, which may be somebody else's."""
    return " ".join(str(error).split())[:500] or type(error).__name__
