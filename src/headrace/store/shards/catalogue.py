"""The common part of stores over shards, whatever the format and wherever they lie: keys, metadata, state."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from headrace.core.errors import BadRow, MissingKey, StoreError, StoreRefused
from headrace.store.base import Columns, Info, Kind
from headrace.store.columns import CLASS, chosen, column, describe, own_columns
from headrace.store.provenance import Provenance, digest_of
from headrace.store.shards.formats import Format, OpenedShards
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


class ShardCatalogue(UrlNamed):
    """Keys and metadata, and when the index is read: each process looks whether it is still true, until ``close``."""

    def __init__(self, url: StoreUrl, shards: Format, place: ShardPlace) -> None:
        self._url, self._format, self._place = url, shards, place
        self._opened: OpenedShards | None = None
        self._looked = 0

    def keys(self) -> list[str]:
        return self._open().keys()

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return self._columns(self._open(), names)

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


def missing(store: str, key: str) -> MissingKey:
    """The error of a key that no sample has."""
    return MissingKey(f"{store} has no sample {key!r}", server=store, key=key)


def bad(store: str, key: str, shard: Shard, error: Exception) -> BadRow:
    """The error of a sample that is there and cannot be read: it names sample and shard."""
    return BadRow.at(store, f"sample {key!r} of {shard.object!r} cannot be read: {one_line(error)}", key=key)


def one_line(error: Exception) -> str:
    """The error's words, which may be somebody else's."""
    return " ".join(str(error).split())[:500] or type(error).__name__
