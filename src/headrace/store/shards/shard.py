"""Shards and what of them is to be read, as values: every format says the same things in them, and none does I/O."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class DamagedShard(ValueError):
    """A file that is not what its format says, or not what its index says. One line."""


class Listed(NamedTuple):
    """An object as its place tells of it."""

    object: str
    """Its name, relative to the place."""
    size: int
    etag: str
    """Another text as soon as the content is another one."""


class Wanted(NamedTuple):
    """Bytes that a parser asks for."""

    object: str
    begin: int
    end: int
    etag: str = ""
    """What the object must still be; empty where any state of it will do."""


Steps: TypeAlias = Generator[Sequence[Wanted], Sequence[bytes], T]
"""A parser that needs bytes: it yields what it wants, is sent the bytes in that order, and returns its result.

Whoever runs it does the reading: with ``pread`` where the shards are files, with many requests at once elsewhere.
"""

Offsets: TypeAlias = Sequence[int]
"""Of n samples: n + 1 borders, where each ends at the beginning of the next, or n pairs of begin and end."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One object with samples in it, and where each of them lies."""

    object: str
    size: int
    etag: str
    offsets: Offsets | Callable[[], Steps[Offsets]]
    """Or a loader, where they stand in the shard itself."""


def borders(offsets: Offsets, count: int, position: int) -> tuple[int, int]:
    """The first byte of one of ``count`` samples, and that behind its last."""
    if len(offsets) == count + 1 and count != 1:  # of one sample both forms have two numbers, and they are the same
        return int(offsets[position]), int(offsets[position + 1])
    return int(offsets[2 * position]), int(offsets[2 * position + 1])
