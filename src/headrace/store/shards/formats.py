"""The protocol of a format towards the stores: it finds shards and reads samples, and does no I/O."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headrace.store.base import Kind, Label, LabelKind
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import Listed, Shard, Steps, Wanted


class OpenedShards(Protocol):
    """All that is known of the shards at a place without reading samples. Can be pickled, and is never changed."""

    files: Sequence[Listed]
    """What it was read from: where one of them is another one, this is no longer true."""
    shards: Sequence[Shard]
    labels: LabelKind

    def kinds(self) -> Steps[dict[str, Kind]]:
        """Every column, ``key`` first."""
        ...

    def counts(self) -> list[int]:
        """The samples of each shard."""
        ...

    def keys(self) -> list[str]: ...

    def find(self, key: str) -> tuple[int, int] | None:
        """The number of the shard, and the position in it."""
        ...

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        """The named columns, ``key`` aside, in the order of the keys."""
        ...

    def table(self, shard: int) -> Steps[Any] | None:
        """Reads what has to be known of a shard before its samples can be read; None where that is nothing."""
        ...

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        """The place of the sample's bytes. Raises ``DamagedShard``."""
        ...

    def is_block(self, shard: int) -> bool:
        """True if a piece holds more samples than one, and is worth keeping."""
        ...

    def is_whole(self, shard: int) -> bool:
        """True if all samples of the shard lie in the same piece."""
        ...

    def room(self, shard: int) -> int:
        """Bytes that all samples of the shard take where they lie."""
        ...

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        """The piece from ``begin``, unpacked, where ``is_block``. Raises ``DamagedShard``. May take its time."""
        ...

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        """Payload and label, of the piece or block. Raises ``DamagedShard``."""
        ...


@runtime_checkable
class Placed(Protocol):
    """Opened shards that know at once where all samples lie."""

    def places(self) -> Sequence[int]:
        """The place of each sample, in the order of the keys: its number as they lie, one shard behind the other."""
        ...


@runtime_checkable
class Sectioned(OpenedShards, Protocol):
    """Opened shards whose metadata can be read for one shard alone."""

    def section(self, shard: int, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        """The named columns of one shard, ``key`` among them, in the order of its samples."""
        ...


class Format(Protocol):
    """Knows which shards there are, of one kind, and what the URL's options ask of them."""

    identity: str
    """What is read of the shards: two stores over the same ones may give other payloads."""

    def opened(self, before: OpenedShards | None) -> Steps[OpenedShards]:
        """Reads the index; ``before`` itself, where nothing has changed since. Raises ``DamagedShard``."""
        ...


@runtime_checkable
class PreparedStore(Protocol):
    """A store that reads an index before its first sample, which may take longer than a session may."""

    def prepare(self) -> None:
        """Reads it. Copies of the store have it, too. Blocking; does nothing the second time."""
        ...
