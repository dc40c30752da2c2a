"""The statements: plain texts, made from the names a URL gave."""

from collections.abc import Sequence
from uuid import UUID

from headrace.store.base import Kind, LabelKind
from headrace.store.cassandra.url_options import Tables
from headrace.store.wording import quoted

TYPES = {Kind.INTEGER: "bigint", Kind.NUMBER: "double", Kind.TEXT: "text", Kind.TRUTH: "boolean"}
BITS = {"bigint": 64, "counter": 64, "int": 32, "smallint": 16, "tinyint": 8, "varint": 64}
"""Of integers; of a varint as many as the driver takes."""
INTEGERS = set(BITS)
KINDS = {
    **dict.fromkeys(INTEGERS, Kind.INTEGER),
    **dict.fromkeys(("double", "float", "decimal"), Kind.NUMBER),
    "boolean": Kind.TRUTH,
}
LABELS = {LabelKind.INTEGER: "bigint", LabelKind.BLOB: "blob"}

NO_COMPRESSION = "WITH compression = {'enabled': 'false'}"
"""Samples are compressed already: to try again costs the server time and gives nothing."""

COLUMNS_OF = "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"
KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
TABLE_ID = "SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?"
CLUSTER = "SELECT cluster_name FROM system.local"
DATA_CENTRE = "SELECT data_center FROM system.local"
VERSIONS = ("SELECT schema_version FROM system.local", "SELECT schema_version FROM system.peers")


def table(keyspace: str, name: str) -> str:
    """A table's full name."""
    return f"{quoted(keyspace)}.{quoted(name)}"


def kind_of(declared: str) -> Kind:
    """The kind of a column's values; text for what is neither number nor truth value."""
    return KINDS.get(declared, Kind.TEXT)


def labels_of(declared: str | None) -> LabelKind | None:
    """The kind of labels in a column of that type; None for a type that cannot hold any."""
    if declared is None:
        return LabelKind.NONE
    if declared in INTEGERS:
        return LabelKind.INTEGER
    return LabelKind.BLOB if declared == "blob" else None


def bound_id(key: str, declared: str) -> str | int | None:
    """A key as the driver binds it; None for one that no row of such a table can have.

    Each id has one text that is its key: "007" or a UUID in capitals would be a second key of a sample.
    """
    try:
        if declared in INTEGERS:
            number, most = int(key), 1 << BITS[declared] - 1
            return number if str(number) == key and -most <= number < most else None
        if declared in ("uuid", "timeuuid"):
            return key if str(UUID(key)) == key else None
    except ValueError:
        return None
    return key


def create_keyspace(tables: Tables, dc: str) -> str:
    """Replicated in one data centre."""
    where = dc.replace("'", "''")
    replication = f"{{'class': 'NetworkTopologyStrategy', '{where}': {tables.replication}}}"
    return f"CREATE KEYSPACE IF NOT EXISTS {quoted(tables.keyspace)} WITH replication = {replication}"


def create_data(tables: Tables, labels: LabelKind) -> str:
    """Ids, labels and payloads."""
    label = "" if labels is LabelKind.NONE else f"{quoted(tables.label_column)} {LABELS[labels]}, "
    return (
        f"CREATE TABLE IF NOT EXISTS {table(tables.keyspace, tables.data)} ({quoted(tables.id_column)} "
        f"{tables.id_type} PRIMARY KEY, {label}{quoted(tables.data_column)} blob) {NO_COMPRESSION}"
    )


def create_metadata(tables: Tables, labels: LabelKind, id_type: str) -> str:
    """The statement that makes the table of metadata: one row for each payload."""
    label = "label bigint, " if labels is LabelKind.INTEGER else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table(tables.keyspace, tables.metadata)} "
        f"({quoted(tables.metadata_id_column)} {id_type} PRIMARY KEY, {label}bytes bigint)"
    )


def add_column(tables: Tables, name: str, kind: Kind) -> str:
    """The statement that adds a metadata column."""
    return f"ALTER TABLE {table(tables.keyspace, tables.metadata)} ADD {quoted(name)} {TYPES[kind]}"


def state_table(tables: Tables) -> str:
    """The name of the table with the rows' revision."""
    return table(tables.keyspace, f"{tables.metadata}_state")


def create_state(tables: Tables) -> str:
    """The statement that makes the table of one row which every write changes."""
    return f"CREATE TABLE IF NOT EXISTS {state_table(tables)} (name text PRIMARY KEY, value text)"


def write_revision(tables: Tables) -> str:
    """The query that writes another revision."""
    return f"INSERT INTO {state_table(tables)} (name, value) VALUES ('revision', ?)"


def read_revision(tables: Tables) -> str:
    """The query that reads the present revision."""
    return f"SELECT value FROM {state_table(tables)} WHERE name = 'revision'"


def write_times(name: str, id_column: str, column: str) -> str:
    """The query for an arc's number of rows and the time of its latest write."""
    by = f"token({quoted(id_column)})"
    return f"SELECT count(*), max(writetime({quoted(column)})) FROM {name} WHERE {by} > ? AND {by} <= ?"


def read_row(tables: Tables, labels: LabelKind) -> str:
    """Label and payload together, by id."""
    label = "" if labels is LabelKind.NONE else f"{quoted(tables.label_column)}, "
    return (
        f"SELECT {label}{quoted(tables.data_column)} FROM {table(tables.keyspace, tables.data)} "
        f"WHERE {quoted(tables.id_column)} = ?"
    )


def write_row(tables: Tables, labels: LabelKind) -> str:
    """Label and payload."""
    names = [tables.id_column, *([] if labels is LabelKind.NONE else [tables.label_column]), tables.data_column]
    return _insert(table(tables.keyspace, tables.data), names)


def write_metadata(tables: Tables, columns: Sequence[str]) -> str:
    """``columns`` without the id, which comes first."""
    return _insert(table(tables.keyspace, tables.metadata), [tables.metadata_id_column, *columns])


def read_metadata(tables: Tables, columns: Sequence[str]) -> str:
    """The query for a row's metadata, in the order of ``columns``."""
    return read_one(table(tables.keyspace, tables.metadata), tables.metadata_id_column, columns)


def read_one(name: str, id_column: str, columns: Sequence[str]) -> str:
    """The query for these columns of a row."""
    return f"SELECT {', '.join(map(quoted, columns))} FROM {name} WHERE {quoted(id_column)} = ?"


def read_some(name: str, id_column: str, columns: Sequence[str]) -> str:
    """The query for the rows that lie first on the ring, as many as are asked for."""
    return f"SELECT {', '.join(map(quoted, [id_column, *columns]))} FROM {name} LIMIT ?"


def remove(tables: Tables) -> tuple[str, str]:
    """The payload, and what is known of it."""
    return (
        f"DELETE FROM {table(tables.keyspace, tables.data)} WHERE {quoted(tables.id_column)} = ?",
        f"DELETE FROM {table(tables.keyspace, tables.metadata)} WHERE {quoted(tables.metadata_id_column)} = ?",
    )


def scan(name: str, id_column: str, columns: Sequence[str]) -> str:
    """The query for an arc's rows: those with a token above the first mark and up to the second."""
    wanted = ", ".join(map(quoted, [id_column, *columns]))
    by = f"token({quoted(id_column)})"
    return f"SELECT {wanted} FROM {name} WHERE {by} > ? AND {by} <= ?"


def arcs(count: int) -> list[tuple[int, int]]:
    """The ring of Murmur3 tokens in so many equal parts. The least token belongs to no row."""
    marks = [-(2**63) + (2**64 * number) // count for number in range(count)]
    return list(zip(marks, [*marks[1:], 2**63 - 1], strict=True))


def _insert(name: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {name} ({', '.join(map(quoted, columns))}) VALUES ({', '.join('?' * len(columns))})"
