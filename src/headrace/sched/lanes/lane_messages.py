"""Messages between a lane and the ledger: what it did, what it is to do next."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

Room = Callable[[int], int]
"""Bytes that the rows of a slot take, from their number."""
File = Callable[[], int]
"""Puts a sample's error where the trainer reads it, and returns where that is; called with the lock held."""

ALL = 1 << 20


class Next(IntEnum):
    """Actions of a lane after a visit to the ledger."""

    ASLEEP = 0
    """Nothing is there for it: it sleeps until it is woken."""
    TICKETS = 1
    """The lane makes samples."""
    COLLATE = 2
    """The lane collates a batch whose samples are all there."""
    STOP = 3
    COMPLETED = 4
    """The lane collates the batch it has completed just now. The tickets are still held, and what they cost was not
    filed.
    """


class ClaimResult(IntEnum):
    """Outcomes of a claim for rows."""

    NO_ROW = 0
    """All are taken: the lane sleeps until it is woken."""
    GIVEN_UP = 1
    """The epoch was."""
    ROWS = 2
    OTHER_SIZE = 3
    """The batch has another number of rows than the one room was reckoned for."""


class TakeRule(IntEnum):
    """Rules by which a lane decides how many tickets to take."""

    EVERYTHING = 0
    """A group at a time."""
    CHUNKS = 1
    WHOLE = 2
    """A group if it is small enough to be made by one lane; else one, or in free order a chunk."""


class TakeSize(NamedTuple):
    """The number of tickets that a lane takes at once."""

    rule: TakeRule
    chunk: int = 1
    """Tickets at most."""
    share: int = 1
    """And at most this part of a group."""
    least: int = 0
    """For fewer, another lane is not worth waking up."""
    whole: int = 0
    """``WHOLE``: groups of so many tickets are small enough."""


class Written(NamedTuple):
    """Rows that were written, for the tickets of ``group`` from ``start`` on."""

    slot: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    group: int
    start: int
    objects: list[int] | None
    """The offsets of samples that are not in place."""


class Visit(NamedTuple):
    """The outcome of a visit: for ``TICKETS`` which, and their ``slot``, or -1 when rows are claimed later; for the
    collation of a batch its ``slot``.
    """

    what: int
    group: int
    start: int
    end: int
    slot: int
    wake: bool
    """The trainer must be woken."""


class Tickets(NamedTuple):
    """Positions ``start`` to ``end`` of a group to be made; ``slot`` is -1 when rows are claimed on completion."""

    group: int
    start: int
    end: int
    slot: int


class RowSpan(NamedTuple):
    """``count`` rows of a slot from ``first`` on, and the slot's layout (whoever came first decided it)."""

    slot: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    layout: int


class Filed(NamedTuple):
    """The outcome of a finished step: a slot to collate (or -1), and whether the trainer must be woken."""

    collate: int
    wake: bool
