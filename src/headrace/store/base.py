"""Protocols of stores.

Every store has a catalogue: its keys and metadata, read without touching payloads. Beside that it is of one of two
kinds, and the kind says who reads it. A ``LocalStore`` is read by whoever needs the sample, one blocking call at a
time. A ``RemoteStore`` is read by an event loop with many requests in flight. One that can also be written to is a
``WritableStore``.

Stores are descriptions: cheap, picklable, equal in every process. What they hold open (a file, a session) is opened by
the process that first needs it and never crosses a fork.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from headrace.core.errors import StoreError

if TYPE_CHECKING:  # a fetcher reads no columns, and starts in half the time without numpy
    import numpy.typing as npt

    from headrace.store.catalogues.origin import Origin

Label: TypeAlias = int | bytes | None
Scalar: TypeAlias = int | float | str | bool | None

Columns: TypeAlias = Mapping[str, "npt.NDArray[Any]"]
"""Metadata, one array per column, all of one length and in one order: that of ``keys()``.

``key`` is always there, ``label`` where labels are integers, ``bytes`` (the size of the payload) where it is known.
Integers are int64, numbers float64 with NaN for what is missing, texts objects (``str`` or None); integers and
truth values of which some are missing are objects too.
"""

RESERVED = ("key", "label", "bytes", "data")
"""Names a metadata column cannot have, because every store uses them itself."""


class Row(NamedTuple):
    """A stored sample. Label and payload are read together, so they cannot be separated."""

    key: str
    payload: bytes | memoryview
    label: Label


class Lost(NamedTuple):
    """A key that gave no row, and why."""

    key: str
    error: StoreError


Fetched: TypeAlias = Row | Lost


class Record(NamedTuple):
    """A row to be written, with its metadata. A column that is not named here is left empty."""

    key: str
    payload: bytes | memoryview
    label: Label
    metadata: Mapping[str, Scalar]
    origin: "Origin | None" = None
    """Where it came from, for stores that remember it."""


class LabelKind(enum.Enum):
    """Kind of labels throughout a store."""

    INTEGER = "integer"
    BLOB = "blob"
    NONE = "none"


class Kind(enum.Enum):
    """Kind of a metadata column's values. Any value may be missing."""

    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    TRUTH = "truth"


@dataclass(frozen=True)
class Schema:
    """Shape of rows to be stored: the kind of the labels, and the metadata columns."""

    labels: LabelKind = LabelKind.INTEGER
    columns: Mapping[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True)
class Info:
    """A store at a glance, from its metadata alone."""

    url: str
    """Without credentials."""
    rows: int
    payload_bytes: int | None
    """Of all payloads together; None where it cannot be known without reading them."""
    labels: LabelKind
    classes: Mapping[str, int]
    """Rows by class: by the name in the column ``class`` where there is one, else by label. Empty without either."""
    columns: Mapping[str, Kind]


class Catalogue(Protocol):
    """Keys and metadata. Blocking; may take seconds for millions of rows. No payload is read."""

    @property
    def name(self) -> str:
        """The store's URL without credentials, as errors and reports show it."""
        ...

    def keys(self) -> list[str]:
        """Every key once, sorted."""
        ...

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        """The metadata, all of it or the named columns. ``key`` comes always. An unknown name is a ``StoreError``."""
        ...

    def info(self) -> Info: ...

    def close(self) -> None:
        """Lets go of what this process holds open. May be called twice; the next use opens again."""
        ...


class Beginning(NamedTuple):
    """The first rows of a store, in the order that is cheapest for it."""

    columns: Columns
    rows: int | None
    """Of the whole store; None where they would have to be counted."""


@runtime_checkable
class PartialCatalogue(Catalogue, Protocol):
    """A catalogue that can be read in part: to see a few rows of ten million costs what a few rows cost."""

    def facts(self, keys: Sequence[str]) -> Columns:
        """The metadata of those of the keys that are there, in any order."""
        ...

    def beginning(self, most: int) -> Beginning:
        """The metadata of so many rows, all of them where there are fewer."""
        ...


@runtime_checkable
class LocalStore(Catalogue, Protocol):
    """A store read by blocking calls: fast enough to be read by the worker that needs the sample. Not thread-safe."""

    def get(self, key: str) -> Row:
        """The row under that key. Raises a ``StoreError`` that names key and store."""
        ...

    def get_many(self, keys: Sequence[str]) -> Iterator[Fetched]:
        """Each key's row, or why there is none, in any order."""
        for key in keys:
            try:
                fetched: Fetched = self.get(key)
            except StoreError as error:
                fetched = Lost(key, error)
            yield fetched


class Session(Protocol):
    """Connections to a remote store, for the event loop that opened them."""

    async def get(self, key: str) -> Row:
        """The row under that key. Raises a ``StoreError``. Any number of calls may be in flight, or be cancelled."""
        ...

    def connections(self) -> int:
        """The number of open connections, as far as the driver tells; 0 where it does not."""
        ...

    async def close(self) -> None:
        """Ends the connections. May be called twice."""
        ...


@runtime_checkable
class RemoteStore(Catalogue, Protocol):
    """A store behind a network: worth many requests at once, from a process that waits for nothing else."""

    async def connect(self) -> Session:
        """New connections, owned by the caller. Raises ``StoreUnavailable`` or ``StoreRefused``."""
        ...


Store: TypeAlias = LocalStore | RemoteStore


class Writer(Protocol):
    """Puts rows into a store. Owned by one thread of one process; several processes may write to one store."""

    def put(self, records: Sequence[Record]) -> None:
        """Writes all of them, or raises; what was written twice is there once. Durable when it returns."""
        ...

    def present(self, keys: Sequence[str]) -> set[str]:
        """The keys that are already stored with their metadata."""
        ...


@runtime_checkable
class WritableStore(Catalogue, Protocol):
    """A store that takes rows."""

    def create(self, schema: Schema) -> None:
        """Makes the tables, and the columns that are missing. A store that is there with other labels is refused."""
        ...

    def writer(self) -> AbstractContextManager[Writer]:
        """A writer for this process. ``create`` came first, in some process."""
        ...


@runtime_checkable
class SettlingStore(WritableStore, Protocol):
    """A store whose rows may lie in two places for as long as somebody writes."""

    def settle(self) -> bool:
        """Put the rows into the one place. Called when all writers are done, however they ended. True if all rows
        are in the one place now.
        """
        ...
