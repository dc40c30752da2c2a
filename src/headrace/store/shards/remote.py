"""Shards in a bucket, as a store that is read with many requests at once."""

import asyncio
import os
from typing import Any, TypeVar

from headrace.core.errors import StoreError, StoreRefused
from headrace.store.background import run_here
from headrace.store.base import RemoteStore, Row, Session
from headrace.store.shards.bucket_place import BucketPlace
from headrace.store.shards.catalogue import BLOCKS, FAULTS, TABLES, ShardCatalogue, bad, missing, one_line
from headrace.store.shards.formats import Format, OpenedShards
from headrace.store.shards.recent import Shared, Unpacked
from headrace.store.shards.shard import Steps, Wanted
from headrace.store.url import StoreUrl

T = TypeVar("T")


class RemoteShards(ShardCatalogue, RemoteStore):
    """Shards in a bucket: each sample is one request for a part of an object."""

    _place: BucketPlace

    def __init__(self, url: StoreUrl, shards: Format, place: BucketPlace) -> None:
        super().__init__(url, shards, place)

    async def connect(self) -> Session:
        if self._opened is None or self._looked != os.getpid():
            try:
                self._opened = await self._place.run(self._format.opened(self._opened))
            except StoreError:
                raise
            except FAULTS as error:
                raise StoreRefused.at(self.name, one_line(error)) from error
            self._looked = os.getpid()
        return ShardSession(self._opened, self._place, self.name)

    def _ran(self, steps: Steps[T]) -> T:
        return run_here(self._place.run(steps))


class ShardSession:
    """Reads samples; the client keeps as many connections as there are requests."""

    def __init__(self, opened: OpenedShards, place: BucketPlace, store: str) -> None:
        self._opened, self._place, self._store = opened, place, store
        self._tables, self._blocks = Shared(TABLES), Shared(BLOCKS)

    async def get(self, key: str) -> Row:
        opened = self._opened
        found = opened.find(key)
        if found is None:
            raise missing(self._store, key)
        shard, position = found
        try:
            steps = opened.table(shard)
            table = None if steps is None else await self._tables.get(shard, 0, lambda: self._table(steps))
            wanted = opened.piece(shard, position, table)
            piece: Any
            if opened.is_block(shard):
                piece = await self._blocks.get(wanted, wanted.end - wanted.begin, lambda: self._block(shard, wanted))
            else:
                piece = await self._read(wanted)
            payload, label = opened.row(shard, position, piece, table)
        except StoreError as error:
            error.key = key
            raise
        except FAULTS as error:
            raise bad(self._store, key, opened.shards[shard], error) from error
        return Row(key, payload, label)

    def connections(self) -> int:
        return 0

    async def close(self) -> None:
        """The connections are the store's, and end with it."""
        await self._tables.close()
        await self._blocks.close()

    async def _table(self, steps: Steps[Any]) -> Unpacked:
        table = await self._place.run(steps)
        return Unpacked(table, getattr(table, "nbytes", 64))

    async def _read(self, wanted: Wanted) -> bytes | memoryview:
        if wanted.begin == wanted.end:
            return b""
        return await self._place.bucket.read(*wanted)

    async def _block(self, shard: int, wanted: Wanted) -> Unpacked:
        raw = await self._read(wanted)
        return await asyncio.to_thread(self._opened.block, shard, raw)
