"""Puts rows into the tables: payload first, metadata after it, so that metadata means the payload is there."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.core.errors import StoreError
from headrace.core.options import Retry
from headrace.store.base import Kind, LabelKind, Record, Schema
from headrace.store.cassandra import cassandra_driver, cql
from headrace.store.cassandra.row_session import TableShape
from headrace.store.cassandra.url_options import Tables
from headrace.store.catalogues.provenance import next_revision
from headrace.store.reading.perseverance import Perseverance, each


class CassandraWriter:
    """Writer of rows into the tables. Inserting a row again is the same row, so what failed in passing is tried
    again.

    A row counts as written when most of its replicas have it, unless the URL names a consistency.
    """

    quorum = True

    def __init__(self, connection: cassandra_driver.Connection, shape: TableShape, store: str) -> None:
        self._connection = connection
        self._shape = shape
        self._store = store
        self._columns = [name for name in shape.kinds if name != "key"]
        self.schema = Schema(shape.labels, {name: shape.kinds[name] for name in self._columns})
        self._again = Perseverance(store, Retry(), None)
        self._revision: Any = None

    async def prepare(self, tables: Tables) -> None:
        """Raises what the driver raises."""
        self._row = await self._connection.create_prepared(cql.write_row(tables, self._shape.labels))
        self._metadata = await self._connection.create_prepared(cql.write_metadata(tables, self._columns))
        self._read = await self._connection.create_prepared(cql.read_metadata(tables, self._columns))
        with suppress(cassandra_driver.NotThere):  # tables of an older release: their rows' write times tell
            self._revision = await self._connection.create_prepared(cql.write_revision(tables))
        self._remove = [await self._connection.create_prepared(text) for text in cql.remove(tables)]

    async def put(self, records: Sequence[Record]) -> None:
        for record in records:
            if cql.bound_id(record.key, self._shape.id_type) is None:
                raise StoreError.at(
                    self._store,
                    f"{record.key!r} is no {self._shape.id_type}, as keys of this table are",
                    key=record.key,
                )
        await self._advance()
        await each(self._put, records)
        await self._advance()  # who read the first one may have read rows of before

    async def _advance(self) -> None:
        """Write another revision: before rows are written, so that a death in between is noticed too, and after.
        Any text but the one that is there will do: nothing is read first, and of writers at one time the last
        one's stands.
        """
        if self._revision is not None:
            await self._run(None, self._revision, [next_revision("")])

    async def present(self, keys: Sequence[str]) -> set[str]:
        return set(await self.stored(keys))

    async def stored(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The metadata, label and size among them, of those that are there."""
        rows = await each(self._metadata_of, keys)
        return {key: row for key, row in zip(keys, rows, strict=True) if row is not None}

    async def _metadata_of(self, key: str) -> dict[str, Any] | None:
        bound = cql.bound_id(key, self._shape.id_type)
        found = None if bound is None else (await self._run(key, self._read, [bound])).first()
        if found is None:
            return None
        values = dict(zip(self._columns, found.as_tuple(), strict=True))
        texts = (name for name, kind in self._shape.kinds.items() if kind is Kind.TEXT and name in values)
        for name in texts:
            values[name] = None if values[name] is None else str(values[name])
        return values

    async def remove(self, keys: Sequence[str]) -> int:
        """The payload first: what is interrupted is still listed, and can be removed again."""
        there = sorted(await self.present(keys))
        await self._advance()
        await each(self._remove_one, there)
        await self._advance()
        return len(there)

    async def _remove_one(self, key: str) -> None:
        for prepared in self._remove:
            await self._run(key, prepared, [cql.bound_id(key, self._shape.id_type)])

    async def _put(self, record: Record) -> None:
        key = cql.bound_id(record.key, self._shape.id_type)
        label = [] if self._shape.labels is LabelKind.NONE else [record.label]
        await self._run(record.key, self._row, [key, *label, bytes(record.payload)])
        own: dict[str, object] = {"label": record.label, "bytes": len(record.payload)}
        values = [own[name] if name in own else record.metadata.get(name) for name in self._columns]
        await self._run(record.key, self._metadata, [key, *values])

    async def _run(self, key: str | None, prepared: Any, values: list[object]) -> Any:
        async def attempt() -> Any:
            statement = prepared.bind(values)
            statement.set_is_idempotent(True)
            if self.quorum:
                statement.set_consistency(cassandra_driver.LOCAL_QUORUM)
            try:
                return await self._connection.execute(statement)
            except cassandra_driver.Failure as error:
                raise cassandra_driver.told(error, self._store, key) from error

        try:
            return await self._again.run(key, attempt)
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError.at(
                self._store, f"the row with the key {key!r} cannot be written: {error}", key=key
            ) from error
