"""Puts rows into the tables: payload first, metadata after it, so that metadata means the payload is there."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace.core.errors import StoreError
from headrace.core.options import Retry
from headrace.store.background import Background
from headrace.store.base import LabelKind, Record
from headrace.store.cassandra import cql, driver
from headrace.store.cassandra.options import Tables
from headrace.store.cassandra.session import Shape, bound_id
from headrace.store.columns import check_record
from headrace.store.perseverance import Perseverance

IN_FLIGHT = 32

T = TypeVar("T")


class CassandraWriter:
    """Writes in a loop of its own. Inserting a row again is the same row, so what failed in passing is tried again.

    A row counts as written when most of its replicas have it, unless the URL names a consistency.
    """

    quorum = True

    def __init__(self, connection: driver.Connection, shape: Shape, background: Background, store: str) -> None:
        self._connection = connection
        self._shape = shape
        self._background = background
        self._store = store
        self._columns = [name for name in shape.kinds if name != "key"]
        self._again = Perseverance(store, Retry(), None)
        self._row: Any = None
        self._metadata: Any = None
        self._present: Any = None

    async def prepare(self, tables: Tables) -> None:
        """Raises what the driver raises."""
        self._row = await self._connection.create_prepared(cql.write_row(tables, self._shape.labels))
        self._metadata = await self._connection.create_prepared(cql.write_metadata(tables, self._columns))
        self._present = await self._connection.create_prepared(cql.is_present(tables))

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            check_record(record, self._shape.labels, self._columns, self._store)
            if bound_id(record.key, self._shape.id_type) is None:
                message = f"{self._store}: {record.key!r} is no {self._shape.id_type}, as keys of this table are"
                raise StoreError(message, server=self._store, key=record.key)
        self._background.run(self._each(self._put, records))

    def present(self, keys: Sequence[str]) -> set[str]:
        found = self._background.run(self._each(self._is_present, keys))
        return {key for key, there in zip(keys, found, strict=True) if there}

    async def _each(self, work: Callable[[Any], Awaitable[T]], items: Sequence[Any]) -> list[T]:
        """All of them, some at once; the first error ends the rest."""
        turns = asyncio.Semaphore(IN_FLIGHT)

        async def one(item: Any) -> T:
            async with turns:
                return await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _put(self, record: Record) -> None:
        key = bound_id(record.key, self._shape.id_type)
        label = [] if self._shape.labels is LabelKind.NONE else [record.label]
        await self._run(record.key, self._row, [key, *label, bytes(record.payload)])
        own: dict[str, object] = {"label": record.label, "bytes": len(record.payload)}
        values = [own[name] if name in own else record.metadata.get(name) for name in self._columns]
        await self._run(record.key, self._metadata, [key, *values])

    async def _is_present(self, key: str) -> bool:
        bound = bound_id(key, self._shape.id_type)
        if bound is None:
            return False
        return (await self._run(key, self._present, [bound])).first() is not None

    async def _run(self, key: str, prepared: Any, values: list[object]) -> Any:
        async def attempt() -> Any:
            statement = prepared.bind(values)
            statement.set_is_idempotent(True)
            if self.quorum:
                statement.set_consistency(driver.LOCAL_QUORUM)
            try:
                return await self._connection.execute(statement)
            except driver.Failure as error:
                raise driver.told(error, self._store, key) from error

        try:
            return await self._again.run(key, attempt)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"{self._store}: the row with the key {key!r} cannot be written: {error}"
            raise StoreError(message, server=self._store, key=key) from error
