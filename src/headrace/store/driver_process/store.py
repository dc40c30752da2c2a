"""A store whose driver runs elsewhere, with every ability of a store."""

from abc import abstractmethod
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager

from headrace.store import disposable
from headrace.store.background import Background, run_here
from headrace.store.base import Columns, Info, Record, RemoteStore, Row, Schema, Session
from headrace.store.columns import check_record, check_schema, column, describe, own_columns
from headrace.store.driver_process import messages
from headrace.store.driver_process.direct import DirectStore, Listing
from headrace.store.driver_process.process import DriverProcess
from headrace.store.origin import Stored, removed
from headrace.store.provenance import Provenance


class ServedStore(RemoteStore):
    """A description of a store, and a process for whatever is done with it: one per call, session and writer.

    In a process that may be killed anyhow, as the fetcher is, sessions are the driver's own.
    """

    @abstractmethod
    def direct(self) -> DirectStore:
        """The store itself, for a process that is disposable: the driver is loaded now."""

    async def connect(self) -> Session:
        if disposable.here():
            return await self.direct().connect()
        process = DriverProcess(self, "read")
        await process.open()
        return ServedSession(process)

    def keys(self) -> list[str]:
        found: list[str] = run_here(self._listing([])).values["key"]
        return found

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return _columns(run_here(self._listing(names)))

    def info(self) -> Info:
        listing = run_here(self._listing(None))
        return describe(self.name, _columns(listing), listing.labels, own_columns(listing.kinds))

    def provenance(self) -> Provenance:
        return run_here(self._provenance())

    def close(self) -> None:
        """Nothing is held open between calls; sessions belong to whoever asked for them."""

    def create(self, schema: Schema) -> None:
        check_schema(schema, self.name)
        run_here(self._create(schema))

    @contextmanager
    def writer(self) -> "Iterator[ServedWriter]":
        background = Background()
        try:
            process = background.run(_opened(self))
            try:
                yield ServedWriter(process, background, self.name)
            finally:
                background.run(_closed(process))
        finally:
            background.close()

    def remove(self, keys: Collection[str]) -> Generator[int, None, None]:
        return removed(self.writer(), keys)

    async def _listing(self, names: Sequence[str] | None) -> Listing:
        process = DriverProcess(self)
        try:
            return messages.read_listing(*await process.call("columns", {"names": None if names is None else [*names]}))
        finally:
            process.close()

    async def _provenance(self) -> Provenance:
        process = DriverProcess(self)
        try:
            found, _ = await process.call("provenance", {})
            return Provenance(found["identity"], found["revision"])
        finally:
            process.close()

    async def _create(self, schema: Schema) -> None:
        process = DriverProcess(self)
        try:
            await process.call("create", messages.schema(schema))
        finally:
            process.close()


async def _opened(store: ServedStore) -> DriverProcess:
    process = DriverProcess(store, "write")
    await process.open()
    return process


async def _closed(process: DriverProcess) -> None:
    process.close()


def _columns(listing: Listing) -> Columns:
    return {name: column(values, listing.kinds[name]) for name, values in listing.values.items()}


class ServedSession:
    """Reads rows through a process of its own; one that dies is replaced when the next row is asked for."""

    def __init__(self, process: DriverProcess) -> None:
        self._process = process
        self._open = True

    async def get(self, key: str) -> Row:
        return messages.read_row(key, *await self._process.call("get", {"key": key}))

    def connections(self) -> int:
        found: int = self._process.opened["connections"]
        return found if self._open else 0

    async def close(self) -> None:
        self._open = False
        self._process.close()


class ServedWriter:
    """Writes rows through a process of its own."""

    def __init__(self, process: DriverProcess, background: Background, store: str) -> None:
        self._process, self._background, self._store = process, background, store
        self._schema = messages.read_schema(process.opened)

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            check_record(record, self._schema.labels, self._schema.columns, self._store)
        self._background.run(self._process.call("put", *messages.records(records, self._store)))

    def present(self, keys: Sequence[str]) -> set[str]:
        return set(self._background.run(self._process.call("present", {"keys": [*keys]}))[0]["present"])

    def stored(self, keys: Sequence[str]) -> dict[str, Stored]:
        rows = self._background.run(self._process.call("stored", {"keys": [*keys]}))[0]["stored"]
        return {
            key: Stored(values.pop("label", None), values.pop("bytes", None), values, None)
            for key, values in rows.items()
        }

    def remove(self, keys: Sequence[str]) -> int:
        """Takes rows out; how many there were."""
        gone: int = self._background.run(self._process.call("remove", {"keys": [*keys]}))[0]["removed"]
        return gone
