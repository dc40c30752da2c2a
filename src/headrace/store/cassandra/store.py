"""The store over Cassandra tables: a data table, and beside it a metadata table without payloads."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.core.errors import StoreRefused
from headrace.core.options import Retry
from headrace.store.background import Background, run_here
from headrace.store.base import Columns, Info, Kind, LabelKind, RemoteStore, Schema, Session
from headrace.store.cassandra import cql, driver
from headrace.store.cassandra.options import options
from headrace.store.cassandra.session import CassandraSession, Shape, agreed, column_types, settled, shape_of
from headrace.store.cassandra.writer import CassandraWriter
from headrace.store.columns import check_kinds, check_labels, check_schema, chosen, column, describe
from headrace.store.perseverance import Perseverance
from headrace.store.url import StoreUrl

ARCS = 32
ARCS_AT_ONCE = 4
METADATA_PAGE = 5000
LABEL_PAGE = 500
BLIND_PAGE = 50
"""Without a metadata table the data table is listed. Where only its keys are asked for the server reads whole rows,
payloads and all, and a page of many is more than a small server's memory."""


class CassandraStore(RemoteStore):
    """``cassandra://[user[:password]@]host[:port][,host...]/keyspace/table``; the options are in the documentation."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._reach, self._tables = options(url)

    @property
    def name(self) -> str:
        return self._url.redacted

    def __repr__(self) -> str:
        return f"CassandraStore({self.name!r})"

    async def connect(self) -> Session:
        connection = await self._connect(wide=True)
        try:
            surer = driver.SURER.get(self._reach.consistency)
            return await CassandraSession.prepared(connection, self._tables, self.name, surer)
        except BaseException:
            await connection.close()
            raise

    def keys(self) -> list[str]:
        found: list[str] = self.columns([])["key"].tolist()
        return found

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return run_here(self._columns(names))[0]

    def info(self) -> Info:
        columns, shape = run_here(self._columns(None))
        own = {name: kind for name, kind in shape.kinds.items() if name not in ("key", "label", "bytes")}
        return describe(self.name, columns, shape.labels, own)

    def close(self) -> None:
        """Nothing is held open between calls; sessions belong to whoever asked for them."""

    def create(self, schema: Schema) -> None:
        check_schema(schema, self.name)
        run_here(self._create(schema))

    @contextmanager
    def writer(self) -> Iterator[CassandraWriter]:
        background = Background()
        try:
            connection = background.run(self._connect())
            try:
                yield background.run(self._writer(connection, background))
            finally:
                background.run(connection.close())
        finally:
            background.close()

    async def _writer(self, connection: driver.Connection, background: Background) -> CassandraWriter:
        try:
            shape = await settled(lambda: self._whole_shape(connection))
            writer = CassandraWriter(connection, shape, background, self.name)
            await settled(lambda: writer.prepare(self._tables))
        except driver.Failure as error:
            raise driver.told(error, self.name) from error
        writer.quorum = self._reach.consistency is None
        return writer

    async def _connect(self, *, wide: bool = False) -> driver.Connection:
        """Reading samples takes all the connections the URL asks for; for the rest one per server will do."""
        reach = self._reach if wide else replace(self._reach, connections=1, io_threads=1)
        return await driver.connect(reach, driver.Login(self._url.user, self._url.secret()), self.name)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[driver.Connection]:
        connection = await self._connect()
        try:
            yield connection
        except driver.Failure as error:
            raise driver.told(error, self.name) from error
        finally:
            await connection.close()

    async def _columns(self, names: Sequence[str] | None) -> tuple[Columns, Shape]:
        async with self._connected() as connection:
            shape = await shape_of(connection, self._tables, self.name)
            wanted = chosen(names, shape.kinds, self.name)
            rows = await self._scan(connection, shape, wanted[1:])
        rows.sort(key=lambda row: str(row[0]))
        texts = {name for name in wanted if shape.kinds[name] is Kind.TEXT}
        found = {}
        for position, name in enumerate(wanted):
            values = [row[position] for row in rows]
            if name in texts:
                values = [None if value is None else str(value) for value in values]
            found[name] = column(values, shape.kinds[name])
        return found, shape

    async def _scan(self, connection: driver.Connection, shape: Shape, wanted: list[str]) -> list[tuple[Any, ...]]:
        tables = self._tables
        if shape.has_metadata:
            source, id_column, page = tables.metadata, tables.metadata_id_column, METADATA_PAGE
            names = wanted
        else:
            source, id_column = tables.data, tables.id_column
            # To read the label as well is cheaper than not to: the server then need not look at the payload.
            labelled = shape.labels is not LabelKind.NONE
            names = [tables.label_column] if labelled else []
            page = LABEL_PAGE if labelled else BLIND_PAGE
        text = cql.scan(cql.table(tables.keyspace, source), id_column, names)
        prepared = await connection.create_prepared(text)
        turns = asyncio.Semaphore(ARCS_AT_ONCE)
        again = Perseverance(self.name, Retry(), None)

        async def execute(statement: Any) -> Any:
            try:
                return await connection.execute(statement)
            except driver.Failure as error:
                raise driver.told(error, self.name) from error

        async def arc(after: int, up_to: int) -> list[tuple[Any, ...]]:
            async with turns:
                statement = prepared.bind([after, up_to], page_size=page)
                statement.set_is_idempotent(True)
                rows: list[tuple[Any, ...]] = []
                while True:
                    result = await again.run(None, partial(execute, statement))
                    rows += [tuple(row.as_tuple()) for row in result.all()]
                    if not result.has_more_pages():
                        return rows
                    statement.set_page_state(result.page_state())

        parts = await asyncio.gather(*(arc(*marks) for marks in cql.arcs(ARCS)))
        rows = [row for part in parts for row in part]
        return rows if shape.has_metadata else [row[: 1 + len(wanted)] for row in rows]

    async def _create(self, schema: Schema) -> None:
        tables = self._tables
        async with self._connected() as connection:
            if (await connection.query(cql.KEYSPACE, [tables.keyspace])).first() is None:
                dc = self._reach.dc
                if dc is None:
                    dc = (await connection.query(cql.DATA_CENTRE)).first().column_value("data_center")
                await connection.query(cql.create_keyspace(tables, dc))
            await settled(lambda: connection.query(cql.create_data(tables, schema.labels)))
            shape = await settled(lambda: shape_of(connection, tables, self.name))
            check_labels(schema.labels, shape.labels, self.name)
            await settled(lambda: connection.query(cql.create_metadata(tables, schema.labels, shape.id_type)))
            shape = await settled(lambda: self._whole_shape(connection))
            for name in check_kinds(schema.columns, shape.kinds, self.name):
                await settled(partial(self._add, connection, name, schema.columns[name]))
            await agreed(connection)

    async def _add(self, connection: driver.Connection, name: str, kind: Kind) -> None:
        try:
            await connection.query(cql.add_column(self._tables, name, kind))
        except driver.Failure:
            # Another process may have added it in the meantime.
            if name not in await column_types(connection, self._tables.keyspace, self._tables.metadata):
                raise

    async def _whole_shape(self, connection: driver.Connection) -> Shape:
        """The shape of tables that are both there."""
        shape = await shape_of(connection, self._tables, self.name)
        if not shape.has_metadata:
            message = f"{self.name}: there is no table {self._tables.metadata!r} yet for metadata"
            raise StoreRefused(message, server=self.name)
        return shape
