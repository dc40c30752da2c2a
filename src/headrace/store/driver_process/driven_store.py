"""A store whose driver runs elsewhere, with every ability of a store."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.store import disposable
from headrace.store.base import (
    Beginning,
    Columns,
    Info,
    Kind,
    LabelKind,
    PartialCatalogue,
    Record,
    RemoteStore,
    Row,
    Schema,
    Session,
)
from headrace.store.catalogues.columns import check_record, check_schema, column, describe, own_columns
from headrace.store.catalogues.origin import RemovingStore, Stored
from headrace.store.catalogues.provenance import Provenance
from headrace.store.driver_process.driver_handle import DriverProcess
from headrace.store.reading.background import Background, run_here


@dataclass(frozen=True)
class Listing:
    """Metadata as lists of plain values, ``key`` first, in the order of the keys."""

    labels: LabelKind
    kinds: Mapping[str, Kind]
    """Of every column there is."""
    values: Mapping[str, list[Any]]
    """Of those that were asked for."""


class ServedStore(RemoteStore, PartialCatalogue, RemovingStore):
    """A description of a store, and a process for whatever is done with it: one per call, session and writer.

    In a process that may be killed anyhow, as the fetcher is, sessions are the driver's own.
    """

    @abstractmethod
    def direct(self) -> Any:
        """The store itself, for a process that is disposable: the driver is loaded now.

        All of it is asynchronous, and nothing of it is closed: ``columns``, ``facts`` and ``beginning``, which give a
        ``Listing``, ``provenance``, ``create``, ``connect``, and ``writer``, with a ``schema``, ``put``, ``present``,
        ``stored`` and ``remove``.
        """

    async def connect(self) -> Session:
        if disposable.here():
            session: Session = await self.direct().connect()
            return session
        return await served(self)

    def keys(self) -> list[str]:
        return self._listing([]).values["key"]

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return _columns(self._listing(names))

    def facts(self, keys: Sequence[str]) -> Columns:
        return _columns(run_here(self._asked("facts", list(keys))))

    def beginning(self, most: int) -> Beginning:
        """The rows that the servers find first."""
        return Beginning(_columns(run_here(self._asked("beginning", most))), None)

    def info(self) -> Info:
        listing = self._listing(None)
        return describe(self.name, _columns(listing), listing.labels, own_columns(listing.kinds))

    def provenance(self) -> Provenance:
        found: Provenance = run_here(self._asked("provenance"))
        return found

    def close(self) -> None:
        """Nothing is held open between calls; sessions belong to whoever asked for them."""

    def create(self, schema: Schema) -> None:
        check_schema(schema, self.name)
        run_here(self._asked("create", schema))

    @contextmanager
    def writer(self) -> "Iterator[ServedWriter]":
        with closing(Background()) as background:
            process = background.run(_opened(self, "writer"))
            try:
                yield ServedWriter(process, background, self.name)
            finally:
                background.run(_closed(process))

    def _listing(self, names: Sequence[str] | None) -> Listing:
        found: Listing = run_here(self._asked("columns", None if names is None else list(names)))
        return found

    async def _asked(self, name: str, *arguments: Any) -> Any:
        with closing(DriverProcess(self)) as process:
            return await process.call(name, *arguments)


async def served(store: RemoteStore) -> Session:
    """A session in a process of its own."""
    return ServedSession(await _opened(store, "connect"))


async def _opened(store: RemoteStore, opening: str) -> DriverProcess:
    process = DriverProcess(store, opening)
    await process.call(None)
    return process


async def _closed(process: DriverProcess) -> None:
    """Close a process in its event loop: that looks at the socket which is closed."""
    process.close()


def _columns(listing: Listing) -> Columns:
    return {name: column(values, listing.kinds[name]) for name, values in listing.values.items()}


class ServedSession:
    """Reads rows through a process of its own; one that dies is replaced when the next row is asked for."""

    def __init__(self, process: DriverProcess) -> None:
        self._process = process
        self._open = True

    async def get(self, key: str) -> Row:
        found: Row = await self._process.call("get", key)
        return found

    async def revision(self) -> str | None:
        """See ``WatchedSession``."""
        found: str | None = await self._process.call("revision")
        return found

    def connections(self) -> int:
        found: int = self._process.opened
        return found if self._open else 0

    async def close(self) -> None:
        self._open = False
        self._process.close()


class ServedWriter:
    """Writes rows through a process of its own."""

    def __init__(self, process: DriverProcess, background: Background, store: str) -> None:
        self._process, self._background, self._store = process, background, store
        self._schema: Schema = process.opened

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            check_record(record, self._schema.labels, self._schema.columns, self._store)
        self._asked("put", [record._replace(payload=bytes(record.payload), origin=None) for record in records])

    def present(self, keys: Sequence[str]) -> set[str]:
        found: set[str] = self._asked("present", list(keys))
        return found

    def stored(self, keys: Sequence[str]) -> dict[str, Stored]:
        return {
            key: Stored(values.pop("label", None), values.pop("bytes", None), values, None)
            for key, values in self._asked("stored", list(keys)).items()
        }

    def remove(self, keys: Sequence[str]) -> int:
        gone: int = self._asked("remove", list(keys))
        return gone

    def _asked(self, name: str, *arguments: Any) -> Any:
        return self._background.run(self._process.call(name, *arguments))
