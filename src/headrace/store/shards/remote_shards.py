"""Shards in a bucket, as a store that is read with many requests at once."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from headrace.core.errors import StoreError, StoreRefused
from headrace.store.base import Row, Session
from headrace.store.reading.background import run_here
from headrace.store.reading.hedge import Hedging
from headrace.store.reading.neighbours import Lying, NeighbourStore
from headrace.store.shards.catalogue import BLOCKS, FAULTS, TABLES, ShardCatalogue, bad, missing, one_line
from headrace.store.shards.formats import Format, OpenedShards, Placed
from headrace.store.shards.places.bucket_place import GAP, BucketPlace
from headrace.store.shards.recent import Shared, Unpacked
from headrace.store.shards.shard import DamagedShard, Steps, Wanted
from headrace.store.url import StoreUrl

T = TypeVar("T")


class RemoteShards(ShardCatalogue, NeighbourStore):
    """Shards in a bucket: a sample, or several neighbours, are one request for a part of an object."""

    _place: BucketPlace

    def __init__(self, url: StoreUrl, shards: Format, place: BucketPlace) -> None:
        super().__init__(url, shards, place)

    async def connect(self) -> Session:
        """A session over the shards that were opened.

        They are not looked at again: keys and places were given for them, and each request names its shard's state.
        """
        if self._opened is None:
            try:
                self._opened = await self._place.run(self._format.opened(None))
            except StoreError:
                raise
            except FAULTS as error:
                raise StoreRefused.at(self.name, one_line(error)) from error
            self._looked = os.getpid()
        return ShardSession(self._opened, self._place, self.name)

    def lying(self, keys: Sequence[str]) -> Lying:
        opened = self._open()
        counts = np.array(opened.counts(), np.int64)
        if len(keys) == counts.sum() and isinstance(opened, Placed) and list(keys) == opened.keys():
            places = np.asarray(opened.places(), np.int64)  # a hundred times as fast as to find each
            shards = np.searchsorted(np.cumsum(counts), places, "right")
            found = np.stack([shards, places - (np.cumsum(counts) - counts)[shards]], 1)
        else:
            found = np.array([self._find(opened, key) for key in keys], np.int64).reshape(-1, 2)
        every = range(len(opened.shards))
        whole = bool(every) and all(map(opened.is_whole, every))
        sizes = np.array([opened.room(shard) for shard in every], np.int64)
        return Lying(found[:, 0], found[:, 1], counts, sizes, whole)

    def _find(self, opened: OpenedShards, key: str) -> tuple[int, int]:
        found = opened.find(key)
        if found is None:
            raise missing(self.name, key)
        return found

    def _ran(self, steps: Steps[T]) -> T:
        return run_here(self._place.run(steps))


class ShardSession:
    """Reads samples; the client keeps as many connections as there are requests."""

    def __init__(self, opened: OpenedShards, place: BucketPlace, store: str) -> None:
        self._opened, self._place, self._store = opened, place, store
        self._tables, self._blocks = Shared(TABLES), Shared(BLOCKS)
        self._counts = opened.counts()
        self._hedging = Hedging()

    async def get(self, key: str) -> Row:
        opened = self._opened
        shard, position = self._found(key)
        try:
            table = await self._table_of(shard)
            wanted = opened.piece(shard, position, table)
            piece = await (self._block_of(shard, wanted, table) if opened.is_block(shard) else self._read(wanted))
            payload, label = opened.row(shard, position, piece, table)
        except StoreError as error:
            error.key = key
            raise
        except FAULTS as error:
            raise bad(self._store, key, opened.shards[shard], error) from error
        return Row(key, payload, label)

    async def around(self, key: str, before: int, after: int) -> Sequence[Row | None]:
        shard, position = self._found(key)
        positions = range(position - before, position + after + 1)
        try:
            if positions.start < 0 or positions.stop > self._counts[shard]:
                raise DamagedShard("it has no such neighbours")
            table = await self._table_of(shard)
            places = [self._piece(shard, each, table) for each in positions]
            if self._opened.is_block(shard):
                return await self._from_blocks(shard, positions, places, table)
            there = [place for place in places if place is not None]
            if not there:
                raise DamagedShard("it is damaged, and so are its neighbours")
            span = Wanted(there[0].object, min(e.begin for e in there), max(e.end for e in there), there[0].etag)
            if span.end - span.begin > sum(e.end - e.begin + GAP for e in there):
                raise DamagedShard("it does not lie beside its neighbours")
            content = memoryview(await self._read(span))
        except StoreError as error:
            error.key = key
            raise
        except FAULTS as error:
            raise bad(self._store, key, self._opened.shards[shard], error) from error
        cut = [
            None if place is None else content[place.begin - span.begin : place.end - span.begin] for place in places
        ]
        return [self._row(shard, each, piece, table) for each, piece in zip(positions, cut, strict=True)]

    def _found(self, key: str) -> tuple[int, int]:
        found = self._opened.find(key)
        if found is None:
            raise missing(self._store, key)
        return found

    def _piece(self, shard: int, position: int, table: Any) -> Wanted | None:
        """The place of a neighbour; None where it is damaged."""
        try:
            return self._opened.piece(shard, position, table)
        except FAULTS:
            return None

    def _row(self, shard: int, position: int, piece: Any, table: Any) -> Row | None:
        """A neighbour; None where it is damaged."""
        try:
            return None if piece is None else Row("", *self._opened.row(shard, position, piece, table))
        except FAULTS:
            return None

    def connections(self) -> int:
        return 0

    def hedges(self) -> int:
        return self._hedging.policy.second

    async def close(self) -> None:
        """The connections are the store's, and end with it."""
        await self._tables.close()
        await self._blocks.close()

    async def _table_of(self, shard: int) -> Any:
        steps = self._opened.table(shard)
        return None if steps is None else await self._tables.get(shard, 0, lambda: self._table(steps))

    async def _block_of(self, shard: int, wanted: Wanted, table: Any) -> Any:
        return await self._blocks.get(wanted, wanted.end - wanted.begin, lambda: self._block(shard, wanted, table))

    async def _from_blocks(
        self, shard: int, positions: range, places: Sequence[Wanted | None], table: Any
    ) -> list[Row | None]:
        """Neighbours out of the blocks they lie in, which may be several. Raises what reading one of them raises."""
        wanted = sorted({place for place in places if place is not None})
        blocks = dict(
            zip(wanted, await asyncio.gather(*(self._block_of(shard, each, table) for each in wanted)), strict=True)
        )
        return [
            None if place is None else self._row(shard, each, blocks[place], table)
            for each, place in zip(positions, places, strict=True)
        ]

    async def _table(self, steps: Steps[Any]) -> Unpacked:
        table = await self._place.run(steps)
        return Unpacked(table, getattr(table, "nbytes", 64))

    async def _read(self, wanted: Wanted) -> bytes | memoryview:
        if wanted.begin == wanted.end:
            return b""
        return await self._hedging.read(wanted.end - wanted.begin, lambda: self._place.bucket.read(*wanted))

    async def _block(self, shard: int, wanted: Wanted, table: Any) -> Unpacked:
        raw = await self._read(wanted)
        return await asyncio.to_thread(self._opened.block, shard, raw, wanted.begin, table)
