"""The tables themselves, read and written through the driver: for a process that may be killed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.core.errors import StoreRefused
from headrace.core.options import Retry
from headrace.store.base import Kind, LabelKind, Schema
from headrace.store.cassandra import cassandra_driver, cql
from headrace.store.cassandra.cassandra_writer import CassandraWriter
from headrace.store.cassandra.row_session import (
    CassandraSession,
    RevisionReader,
    TableShape,
    agreed,
    column_types,
    settled,
    shape_of,
)
from headrace.store.cassandra.url_options import options
from headrace.store.catalogues.columns import check_kinds, check_labels, chosen
from headrace.store.catalogues.provenance import Provenance
from headrace.store.driver_process.driven_store import Listing
from headrace.store.reading.perseverance import Perseverance, each
from headrace.store.url import StoreUrl

ARCS = 32
COUNTED_ARCS = 256
"""A count reads its whole arc within the time limit of one request, so that of a million rows has to be short."""
ARCS_AT_ONCE = 4
METADATA_PAGE = 5000
LABEL_PAGE = 500
BLIND_PAGE = 50
"""Without a metadata table the data table is listed. Where only its keys are asked for the server reads whole rows,
payloads and all, and a page of many is more than a small server's memory."""
PLAIN: Mapping[Kind, Callable[[Any], object]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.TEXT: str,
    Kind.TRUTH: bool,
}
"""Into values of Python's own."""


class CassandraTables:
    """A data table, and beside it a metadata table without payloads."""

    def __init__(self, url: StoreUrl) -> None:
        self.name = url.redacted
        self._url = url
        self._reach, self._tables = options(url)

    async def connect(self) -> CassandraSession:
        connection = await self._connect(wide=True)
        try:
            surer = cassandra_driver.SURER.get(self._reach.consistency)
            return await CassandraSession.prepared(
                connection, self._tables, self.name, surer, self._revisions(connection)
            )
        except BaseException:
            await connection.close()
            raise

    async def columns(self, names: Sequence[str] | None) -> Listing:
        try:
            connection = await self._connect()
            shape = await shape_of(connection, self._tables, self.name)
            wanted = chosen(names, shape.kinds, self.name)
            rows = await self._scan(connection, shape, wanted[1:])
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error
        rows.sort(key=lambda row: str(row[0]))
        return _listing(shape, wanted, rows)

    async def facts(self, keys: Sequence[str]) -> Listing:
        """The metadata of those of the keys that are there."""
        try:
            connection = await self._connect()
            shape = await shape_of(connection, self._tables, self.name)
            source, id_column, names = self._source(shape, list(shape.kinds)[1:])
            # A query has to ask for something, and an id is always there.
            prepared = await connection.create_prepared(cql.read_one(source, id_column, [id_column, *names]))
            bound = [id_ for key in dict.fromkeys(keys) if (id_ := cql.bound_id(key, shape.id_type)) is not None]
            found = await each(lambda id_: self._rows(connection, prepared.bind([id_])), bound)
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error
        return _listing(shape, list(shape.kinds), [row for rows in found for row in rows])

    async def beginning(self, most: int) -> Listing:
        """The metadata of some rows: those that lie first on the ring."""
        try:
            connection = await self._connect()
            shape = await shape_of(connection, self._tables, self.name)
            source, id_column, names = self._source(shape, list(shape.kinds)[1:])
            prepared = await connection.create_prepared(cql.read_some(source, id_column, names))
            rows = await self._rows(connection, prepared.bind([most], page_size=self._page(shape))) if most else []
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error
        return _listing(shape, list(shape.kinds), rows)

    async def writer(self) -> CassandraWriter:
        try:
            connection = await self._connect()
            shape = await settled(lambda: self._whole_shape(connection))
            writer = CassandraWriter(connection, shape, self.name)
            await settled(lambda: writer.prepare(self._tables))
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error
        writer.quorum = self._reach.consistency is None
        return writer

    async def provenance(self) -> Provenance:
        """The table's own number, and the revision that every writer of this package advances.

        Tables without one were written by others: there the number of rows and the latest write time of a label tell.
        """
        tables = self._tables
        try:
            connection = await self._connect()
            named = (await connection.query(cql.TABLE_ID, [tables.keyspace, tables.data])).first()
            if named is None:
                raise StoreRefused.at(self.name, f"there is no table {tables.data!r}")
            cluster = (await connection.query(cql.CLUSTER)).first().as_tuple()[0]
            revision = await self._revisions(connection).read() or await self._write_times(connection)
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error
        columns = f"{tables.id_column}:{tables.label_column}:{tables.data_column}"
        return Provenance(f"cassandra:{cluster}:{named.as_tuple()[0]}:{columns}", revision)

    def _revisions(self, connection: cassandra_driver.Connection) -> RevisionReader:
        return RevisionReader(connection, self._tables, quorum=self._reach.consistency is None)

    async def _write_times(self, connection: cassandra_driver.Connection) -> str:
        tables, shape = self._tables, await shape_of(connection, self._tables, self.name)
        if shape.labels is not LabelKind.NONE:  # of a row of which both are written, the label's time is the payload's
            source, id_column, column = tables.data, tables.id_column, tables.label_column
        elif shape.has_metadata and "bytes" in shape.kinds:
            source, id_column, column = tables.metadata, tables.metadata_id_column, "bytes"
        else:
            raise StoreRefused.at(
                self.name,
                "nothing says when its rows were written without reading payloads, so a cache cannot "
                "tell: derive from StoreDataset, and tell the rows apart in `cache_fingerprint()`",
            )
        text = cql.write_times(cql.table(tables.keyspace, source), id_column, column)
        found = await self._everywhere(connection, text, COUNTED_ARCS, LABEL_PAGE)
        return f"{sum(count for count, _ in found)} rows up to {max(latest or 0 for _, latest in found)}"

    async def _connect(self, *, wide: bool = False) -> cassandra_driver.Connection:
        """Reading samples takes all the connections the URL asks for; for the rest one per server will do."""
        reach = self._reach if wide else replace(self._reach, connections=1, io_threads=1)
        return await cassandra_driver.connect(
            reach, cassandra_driver.Login(self._url.user, self._url.secret()), self.name
        )

    async def _scan(
        self, connection: cassandra_driver.Connection, shape: TableShape, wanted: list[str]
    ) -> list[tuple[Any, ...]]:
        source, id_column, names = self._source(shape, wanted)
        return await self._everywhere(connection, cql.scan(source, id_column, names), ARCS, self._page(shape))

    def _source(self, shape: TableShape, wanted: Sequence[str]) -> tuple[str, str, Sequence[str]]:
        """The table to list, its column of ids, and the columns to ask it for."""
        tables = self._tables
        if shape.has_metadata:
            return cql.table(tables.keyspace, tables.metadata), tables.metadata_id_column, wanted
        # To read the label as well is cheaper than not to: the server then need not look at the payload.
        names = [] if shape.labels is LabelKind.NONE else [tables.label_column]
        return cql.table(tables.keyspace, tables.data), tables.id_column, names

    @staticmethod
    def _page(shape: TableShape) -> int:
        if shape.has_metadata:
            return METADATA_PAGE
        return BLIND_PAGE if shape.labels is LabelKind.NONE else LABEL_PAGE

    async def _everywhere(
        self, connection: cassandra_driver.Connection, text: str, arcs: int, page: int
    ) -> list[tuple[Any, ...]]:
        """The rows that a query about an arc gives for the whole ring, arc after arc."""
        prepared = await connection.create_prepared(text)

        async def arc(marks: tuple[int, int]) -> list[tuple[Any, ...]]:
            return await self._rows(connection, prepared.bind([*marks], page_size=page))

        return [row for part in await each(arc, cql.arcs(arcs), ARCS_AT_ONCE) for row in part]

    async def _rows(self, connection: cassandra_driver.Connection, statement: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives, page after page."""
        statement.set_is_idempotent(True)
        again = Perseverance(self.name, Retry(), None)
        rows: list[tuple[Any, ...]] = []
        while True:
            result = await again.run(None, partial(self._executed, connection, statement))
            rows += [tuple(row.as_tuple()) for row in result.all()]
            if not result.has_more_pages():
                return rows
            statement.set_page_state(result.page_state())

    async def _executed(self, connection: cassandra_driver.Connection, statement: Any) -> Any:
        try:
            return await connection.execute(statement)
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error

    async def create(self, schema: Schema) -> None:
        try:
            await self._create(await self._connect(), schema)
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self.name) from error

    async def _create(self, connection: cassandra_driver.Connection, schema: Schema) -> None:
        tables = self._tables
        if (await connection.query(cql.KEYSPACE, [tables.keyspace])).first() is None:
            dc = self._reach.dc
            if dc is None:
                dc = (await connection.query(cql.DATA_CENTRE)).first().column_value("data_center")
            await connection.query(cql.create_keyspace(tables, dc))
        await settled(lambda: connection.query(cql.create_data(tables, schema.labels)))
        shape = await settled(lambda: shape_of(connection, tables, self.name))
        check_labels(schema.labels, shape.labels, self.name)
        await settled(lambda: connection.query(cql.create_metadata(tables, schema.labels, shape.id_type)))
        await settled(lambda: connection.query(cql.create_state(tables)))
        shape = await settled(lambda: self._whole_shape(connection))
        for name in check_kinds(schema.columns, shape.kinds, self.name):
            await settled(partial(self._add, connection, name, schema.columns[name]))
        await agreed(connection)  # else the first rows go to servers that do not know the columns yet

    async def _add(self, connection: cassandra_driver.Connection, name: str, kind: Kind) -> None:
        try:
            await connection.query(cql.add_column(self._tables, name, kind))
        except cassandra_driver.Failure:
            # Another process may have added it in the meantime.
            if name not in await column_types(connection, self._tables.keyspace, self._tables.metadata):
                raise

    async def _whole_shape(self, connection: cassandra_driver.Connection) -> TableShape:
        """The shape of tables that are both there."""
        shape = await shape_of(connection, self._tables, self.name)
        if not shape.has_metadata:
            raise StoreRefused.at(self.name, f"there is no table {self._tables.metadata!r} yet for metadata")
        return shape


def _listing(shape: TableShape, wanted: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Listing:
    found = {}
    for position, name in enumerate(wanted):
        plain = PLAIN[shape.kinds[name]]
        found[name] = [None if row[position] is None else plain(row[position]) for row in rows]
    return Listing(shape.labels, shape.kinds, found)
