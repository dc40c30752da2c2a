"""Shards in a folder, as a store that whoever needs a sample reads."""

from typing import Any, TypeVar

from headrace.core.errors import StoreError
from headrace.store.base import LocalStore, Row
from headrace.store.catalogues.provenance import Provenance
from headrace.store.shards.catalogue import BLOCKS, FAULTS, TABLES, ShardCatalogue, bad, missing
from headrace.store.shards.formats import Format, OpenedShards
from headrace.store.shards.places.folder_place import FolderPlace
from headrace.store.shards.recent import Recent, Unpacked
from headrace.store.shards.shard import Steps
from headrace.store.url import StoreUrl

T = TypeVar("T")


class LocalShards(ShardCatalogue, LocalStore):
    """Shards in a folder."""

    _place: FolderPlace

    def __init__(self, url: StoreUrl, shards: Format, place: FolderPlace) -> None:
        super().__init__(url, shards, place)
        self._tables, self._blocks = Recent(TABLES), Recent(BLOCKS)
        self._standing: tuple[OpenedShards, Provenance] | None = None

    def get(self, key: str) -> Row:
        opened = self._open()
        found = opened.find(key)
        if found is None:
            raise missing(self.name, key)
        shard, position = found
        try:
            table = self._tables.get(shard)
            if table is None and (steps := opened.table(shard)) is not None:
                table = self._place.run(steps)
                self._tables.put(shard, Unpacked(table, getattr(table, "nbytes", 64)))
            payload, label = opened.row(shard, position, self._piece(opened, shard, position, table), table)
        except StoreError as error:
            error.key = key
            raise
        except FAULTS as error:
            raise bad(self.name, key, opened.shards[shard], error) from error
        return Row(key, payload, label)

    def standing(self) -> Provenance:
        """The provenance of what this process reads: where a shard is another one by now, reading it raises."""
        opened = self._open()
        if self._standing is None or self._standing[0] is not opened:
            self._standing = opened, self._told(opened)
        return self._standing[1]

    def close(self) -> None:
        self._tables, self._blocks = Recent(TABLES), Recent(BLOCKS)
        super().close()

    def _ran(self, steps: Steps[T]) -> T:
        return self._place.run(steps)

    def _piece(self, opened: OpenedShards, shard: int, position: int, table: Any) -> Any:
        wanted = opened.piece(shard, position, table)
        if not opened.is_block(shard):
            return self._place.read(wanted)
        found = self._blocks.get(wanted)
        if found is None:
            made = opened.block(shard, self._place.read(wanted), wanted.begin, table)
            self._blocks.put(wanted, made)
            found = made.value
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tables": Recent(TABLES), "_blocks": Recent(BLOCKS)}
