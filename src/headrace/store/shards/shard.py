"""Shards and what of them is to be read, as values: every format says the same things in them, and none does I/O."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

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
    """Bytes that a parser asks for. They are given as ``bytes`` or a ``memoryview``."""

    object: str
    begin: int
    end: int
    etag: str = ""
    """What the object must still be; empty where any state of it will do."""


class Look(NamedTuple):
    """Asks for the size and state of one object. The answer is a ``Listed``, or None where there is none."""

    object: str


class Content(NamedTuple):
    """Asks for a small object whole. The answer is a pair of a ``Listed`` and ``bytes``, or None where there is none.

    One of more than ``most`` bytes is a ``DamagedShard``.
    """

    object: str
    most: int


class Below(NamedTuple):
    """Asks which objects lie below a prefix. The answer is a sorted list of ``Listed``; None where nobody can say."""

    prefix: str = ""


class Each(NamedTuple):
    """Asks for several parsers to be run, perhaps at once. The answer is the list of their results."""

    steps: "Sequence[Steps[Any]]"


class Recall(NamedTuple):
    """Asks for what was remembered of an object in that state: empty where nothing was yet, None where nobody does."""

    listed: Listed


class Remember(NamedTuple):
    """Gives what was made of an object to who remembers it for the next time. The answer says nothing."""

    listed: Listed
    made: bytes


Request: TypeAlias = Wanted | Look | Content | Below | Each | Recall | Remember

Steps: TypeAlias = Generator[Sequence[Request], Sequence[Any], T]
"""A parser that needs something: it yields requests, is sent the answers in that order, and returns its result.

Whoever runs it does the reading: with ``pread`` where the shards are files, with many requests at once elsewhere. What
goes wrong is raised where the requests were yielded.
"""

Offsets: TypeAlias = Sequence[int]
"""Of n samples: n + 1 borders, where each ends at the beginning of the next, or n pairs of begin and end."""


@dataclass(frozen=True, slots=True)
class Shard:
    """An object with samples in it, and where each of them lies."""

    object: str
    size: int
    etag: str
    offsets: Offsets | Callable[[], Steps[Offsets]]
    """Or a loader, where they stand in the shard itself."""


def borders(offsets: Offsets, count: int, position: int) -> tuple[int, int]:
    """The first byte of one of ``count`` samples, and that behind its last."""
    if len(offsets) == count + 1:  # of one sample both forms have two numbers, and they are the same
        return int(offsets[position]), int(offsets[position + 1])
    return int(offsets[2 * position]), int(offsets[2 * position + 1])


def check_small(listed: Listed, most: int) -> None:
    """Raise ``DamagedShard`` where an object that is read whole has more than so many bytes."""
    if listed.size > most:
        raise DamagedShard(f"{listed.object!r} has {listed.size} bytes, and is to have {most} at most")
