"""Shape of the tables, and the reading of single rows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.core.errors import BadRow, MissingKey, StoreRefused
from headrace.store.base import Kind, LabelKind, Row
from headrace.store.cassandra import cassandra_driver, cql
from headrace.store.cassandra.url_options import Tables

T = TypeVar("T")

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
ID_TYPES = {"text", "varchar", "ascii", "uuid", "timeuuid", *cql.INTEGERS}


@dataclass(frozen=True)
class TableShape:
    """Shape of a table: the type of ids, the kind of labels, and the columns of the catalogue by our names."""

    id_type: str
    labels: LabelKind
    has_metadata: bool
    kinds: Mapping[str, Kind]


async def column_types(connection: cassandra_driver.Connection, keyspace: str, table: str) -> dict[str, str]:
    """The columns of a table; empty where there is no such table."""
    result = await connection.query(cql.COLUMNS_OF, [keyspace, table])
    return dict(row.as_tuple() for row in result.all())


async def settled(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, tried for some seconds: a table just made is not known to every server at once."""
    for pause in PAUSES:
        try:
            return await attempt()
        except (cassandra_driver.NotThere, StoreRefused):
            await asyncio.sleep(pause)
    return await attempt()


async def agreed(connection: cassandra_driver.Connection) -> None:
    """Waits, some seconds at most, until all servers know of the same tables."""
    for pause in PAUSES:
        versions = [row.as_tuple()[0] for text in cql.VERSIONS for row in (await connection.query(text)).all()]
        if len(set(versions)) == 1:
            return
        await asyncio.sleep(pause)


async def shape_of(connection: cassandra_driver.Connection, tables: Tables, store: str) -> TableShape:
    """Raises ``StoreRefused`` when a table or column that the URL names is not there, or is of another type."""
    try:
        data, metadata = await asyncio.gather(
            *(column_types(connection, tables.keyspace, table) for table in (tables.data, tables.metadata))
        )
    except cassandra_driver.Failure as error:
        raise cassandra_driver.told(error, store) from error
    if not data:
        raise StoreRefused.at(store, f"there is no table {tables.keyspace}.{tables.data}")
    for column, wanted in ((tables.id_column, ID_TYPES), (tables.data_column, {"blob"})):
        if data.get(column) not in wanted:
            is_a = f"is a {data[column]}" if column in data else "is not there"
            has = ", ".join(f"{name} {declared}" for name, declared in sorted(data.items()))
            raise StoreRefused.at(store, f"column {column!r} of {tables.data} {is_a}; the table has {has}")
    labels = cql.labels_of(data.get(tables.label_column))
    if labels is None:
        declared = data[tables.label_column]
        raise StoreRefused.at(
            store, f"labels are integers or blobs, not {declared} as in column {tables.label_column!r}"
        )
    kinds = {"key": Kind.TEXT}
    if metadata:
        others = {name: cql.kind_of(declared) for name, declared in metadata.items()}
        if others.pop(tables.metadata_id_column, None) is None:
            raise StoreRefused.at(store, f"{tables.metadata} has no column {tables.metadata_id_column!r}")
        kinds |= {name: others.pop(name) for name in ("label", "bytes") if name in others}
        kinds |= dict(sorted(others.items()))
    elif labels is LabelKind.INTEGER:
        kinds["label"] = Kind.INTEGER
    return TableShape(data[tables.id_column], labels, bool(metadata), kinds)


class RevisionReader:
    """Reader of the revision that every writer of this package advances; prepares its statement when first asked."""

    def __init__(self, connection: cassandra_driver.Connection, tables: Tables, *, quorum: bool) -> None:
        """``quorum``: most replicas are asked, as most are written to where the URL names no consistency."""
        self._connection, self._quorum = connection, quorum
        self._text = cql.read_revision(tables)
        self._read: Any = None

    async def read(self) -> str | None:
        """The revision; None for tables without one, which others wrote. Raises what the driver raises."""
        try:
            self._read = self._read or await self._connection.create_prepared(self._text)
        except cassandra_driver.NotThere:
            return None
        statement = self._read.bind([])
        if self._quorum:
            statement.set_consistency(cassandra_driver.LOCAL_QUORUM)
        found = (await self._connection.execute(statement)).first()
        return None if found is None else str(found.as_tuple()[0])


class CassandraSession:
    """Reader of rows: a prepared statement, run for each key. The driver spreads requests over servers and
    connections.

    ``surer``: the consistency at which a row that one replica has not is asked for again, before it counts as missing.
    """

    def __init__(
        self,
        connection: cassandra_driver.Connection,
        read: Any,
        shape: TableShape,
        store: str,
        surer: Any | None,
        reader: RevisionReader,
    ) -> None:
        self._connection = connection
        self._surer, self._reader = surer, reader
        self._read = read
        self._shape = shape
        self._labelled = shape.labels is not LabelKind.NONE
        self._store = store
        self._open = True

    @classmethod
    async def prepared(
        cls,
        connection: cassandra_driver.Connection,
        tables: Tables,
        store: str,
        surer: Any | None,
        reader: RevisionReader,
    ) -> "CassandraSession":
        """Prepares what most tables take while it asks what this one has: a round trip less, as a rule."""
        guess = cql.read_row(tables, LabelKind.INTEGER)
        shape, read = await asyncio.gather(shape_of(connection, tables, store), _attempted(connection, guess))
        text = cql.read_row(tables, shape.labels)
        if read is None or text != guess:
            try:
                read = await settled(lambda: connection.create_prepared(text))
            except cassandra_driver.Failure as error:
                raise cassandra_driver.told(error, store) from error
        return cls(connection, read, shape, store, surer, reader)

    async def get(self, key: str) -> Row:
        bound = cql.bound_id(key, self._shape.id_type)
        if bound is None:
            raise self._missing(key)
        found = await self._found(key, bound)
        if found is None and self._surer is not None:
            found = await self._found(key, bound, self._surer)
        if found is None:
            raise self._missing(key)
        payload = found.column_value_by_index(1 if self._labelled else 0)
        label = found.column_value_by_index(0) if self._labelled else None
        if payload is None or (self._labelled and label is None):
            what = "payload" if payload is None else "label"
            raise BadRow.at(self._store, f"the row with the key {key!r} has no {what}", key=key)
        return Row(key, payload, label)

    async def _found(self, key: str, bound: str | int, consistency: Any | None = None) -> Any:
        """The driver's row; None where those servers that were asked have none."""
        statement = self._read.bind([bound])
        statement.set_is_idempotent(True)  # else the driver does not ask another server when one dies
        if consistency is not None:
            statement.set_consistency(consistency)
        try:
            return (await self._connection.execute(statement)).first()
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self._store, key) from error

    async def revision(self) -> str | None:
        """See ``WatchedSession``: None for tables that something else wrote."""
        try:
            return await self._reader.read()
        except cassandra_driver.Failure as error:
            raise cassandra_driver.told(error, self._store) from error

    def connections(self) -> int:
        return int(self._connection.metrics().stats_total_connections) if self._open else 0

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._connection.close()

    def _missing(self, key: str) -> MissingKey:
        return MissingKey(f"{self._store} has no row with the key {key!r}", server=self._store, key=key)


async def _attempted(connection: cassandra_driver.Connection, text: str) -> Any | None:
    """A prepared statement; None where the server does not take it."""
    try:
        return await connection.create_prepared(text)
    except cassandra_driver.Failure:
        return None
