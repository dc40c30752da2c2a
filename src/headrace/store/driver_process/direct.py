"""What runs in a driver's process: the store itself, all of it asynchronous."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.store.base import Kind, LabelKind, Record, Schema, Session
from headrace.store.provenance import Provenance


@dataclass(frozen=True)
class Listing:
    """Metadata as lists of plain values, ``key`` first, in the order of the keys."""

    labels: LabelKind
    kinds: Mapping[str, Kind]
    """Of every column there is."""
    values: Mapping[str, list[Any]]
    """Of those that were asked for."""


class DirectWriter(Protocol):
    """Puts rows into a store."""

    schema: Schema
    """What it takes."""

    async def put(self, records: Sequence[Record]) -> None:
        """Writes all of them, or raises. Durable when it returns."""
        ...

    async def present(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that are already stored with their metadata."""
        ...

    async def stored(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is known of those that are there: metadata, ``label`` where it is an integer, ``bytes``."""
        ...

    async def remove(self, keys: Sequence[str]) -> int:
        """Takes rows out; how many there were."""
        ...


class DirectStore(Protocol):
    """A store with its driver. Nothing of it is closed: its process ends."""

    async def columns(self, names: Sequence[str] | None) -> Listing:
        """The metadata, all of it or the named columns."""
        ...

    async def provenance(self) -> Provenance:
        """Which store it is, and in which state."""
        ...

    async def create(self, schema: Schema) -> None: ...

    async def connect(self) -> Session: ...

    async def writer(self) -> DirectWriter: ...
