"""Origin of a row and what it was made of: so that a store can tell what an ingest brings from what it has."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.store.base import Label, Record, Scalar, Writer

AT_ONCE = 500
"""Rows that are removed together."""


class Origin(NamedTuple):
    """Origin of a row."""

    source: str
    """Which source it was, as people name it; no credentials."""
    root: str | None
    """The folder in which ``place``, up to a NUL, is the path of a file; None where a place is no file."""
    place: str
    """Names the sample within its source."""
    content: bytes
    """A hash of the content, and of a label that is a file, as they lay there."""
    made: str
    """How the content was changed before it was stored; empty if it was not."""
    run: str
    """Which ingest wrote it."""

    @property
    def shown(self) -> str:
        """The place as people know it: up to a NUL, behind which stands what tells two rows of one file apart."""
        return self.place.partition("\0")[0]


class Stored(NamedTuple):
    """Stored row without its payload."""

    label: Label
    size: int | None
    """Bytes of the payload, where the store knows."""
    metadata: Mapping[str, Scalar]
    origin: Origin | None
    """None where the row was written by other means."""


@runtime_checkable
class ComparingWriter(Writer, Protocol):
    """A writer that can say what its store has, so that it can be compared with what comes."""

    def stored(self, keys: Sequence[str]) -> dict[str, Stored]:
        """The stored rows among ``keys``; absent keys are omitted."""
        ...


@runtime_checkable
class RememberingWriter(ComparingWriter, Protocol):
    """A writer whose store remembers origins."""

    def add(self, records: Sequence[Record]) -> set[str]:
        """Writes those whose keys are not there yet, all at once; the keys of the others. Whoever else writes, a row
        that is there is not written over.
        """
        ...

    def alike(self, origin: Origin) -> dict[str, Origin]:
        """A few rows, by key, that earlier ingests wrote for the same place or with the same content."""
        ...


class RemovingWriter(Writer, Protocol):
    """A writer that takes rows out, too."""

    def remove(self, keys: Sequence[str]) -> int:
        """Remove rows; returns how many there were."""
        ...


@runtime_checkable
class RemovingStore(Protocol):
    """A store from which rows can be removed."""

    def writer(self) -> AbstractContextManager[RemovingWriter]: ...

    def remove(self, keys: Collection[str]) -> Generator[int, None, None]:
        """Removes them, some at a time; how many were there, each time. What was removed stays so."""
        wanted = list(keys)
        with self.writer() as writer:
            for start in range(0, len(wanted), AT_ONCE):
                yield writer.remove(wanted[start : start + AT_ONCE])


@runtime_checkable
class TracingStore(Protocol):
    """A store that can list where its rows came from."""

    def origins(self) -> Iterator[tuple[str, Origin]]:
        """Every row whose origin is known."""
        ...


@runtime_checkable
class NamingStore(Protocol):
    """A store that keeps the names of classes apart from rows, so that one without rows keeps its number."""

    def class_numbers(self) -> dict[str, int]: ...

    def name_classes(self, numbers: Mapping[str, int]) -> None:
        """Adds names; one that is there keeps its number."""
        ...
