"""Encoding of facts in the ledger's words where several share one, or where there may be none. 0 is always none."""

from bisect import bisect_left
from collections.abc import Iterable

from headrace.sched import ledger_layout as W


def some(number: int) -> int:
    """A number where 0 says that there is none."""
    return number + 1


def which(word: int) -> int:
    """The number that ``some`` encoded; -1: none."""
    return word - 1


def pair(one: int, two: int) -> int:
    """A ticket (group, position), a row (slot, row) or a serial (generation, place in the order) as one number."""
    return one << 32 | two


def parts(number: int) -> tuple[int, int]:
    """The first and the second of a ``pair``."""
    return number >> 32, number & 0xFFFFFFFF


def tickets(rows: Iterable[int]) -> list[int]:
    """The tickets that rows hold, ``which`` of each row's first word. For a batch at a time, since it is done with
    every one.
    """
    return [row - 1 for row in rows]


def grouped(tickets: Iterable[int]) -> dict[int, set[int]]:
    """The ``parts`` of tickets: positions by group. For a batch at a time, too."""
    # Sorted, a group's tickets are one run: its end is looked up, and nothing is called for each of them.
    ordered, found, at = sorted(tickets), {}, 0
    while at < len(ordered):
        group = ordered[at] >> 32
        end = bisect_left(ordered, group + 1 << 32, at)
        found[group] = {ticket & 0xFFFFFFFF for ticket in ordered[at:end]}
        at = end
    return found


def second(number: int) -> int:
    """The second of a ``pair``."""
    return number & 0xFFFFFFFF


def cursor(place: int, position: int) -> int:
    """A place in the order of groups, and a position in that group."""
    return place << 24 | position


def at_cursor(word: int) -> tuple[int, int]:
    """The place and the position of a ``cursor``."""
    return word >> 24, word & 0xFFFFFF


def collation(slot: int) -> int:
    """A slot to be collated, among tickets to run again."""
    return -some(slot)


def to_collate(item: int) -> int:
    """The slot of a ``collation``; -1: the item is a ticket."""
    return max(-1, -item - 1)


def state(ticket: int) -> int:
    """The state of a ticket: PENDING, DONE or FAILED."""
    return ticket & 15


def deaths(ticket: int) -> int:
    """Workers that a sample took with it."""
    return ticket >> 4 & 7


def blamed(ticket: int) -> int:
    """The word of a ticket that took one more worker with it."""
    return ticket + (1 << 4)


def failed(ticket: int, blob: int) -> int:
    """The word of a ticket that failed, whose error stands at ``blob``. One that was AHEAD stays so: in its turn,
    it is passed over.
    """
    return ticket & 0xF0 | W.FAILED | blob << 8


def undone(ticket: int) -> int:
    """The word of a ticket that is pending again."""
    return ticket & ~15


def blob(ticket: int) -> int:
    """The offset of the error of a ticket that failed."""
    return ticket >> 8


def layout(number: int) -> int:
    """A slot's layout, -1 where its samples travel as objects, as a word in which 0 says that none is decided."""
    return number + 2


def layout_in(word: int) -> int:
    """The layout that ``layout`` encoded; UNDECIDED while there is none."""
    return word - 2


def as_object(offset: int) -> int:
    """The state of a row whose sample stands there."""
    return W.AS_OBJECT | offset << 8


def kind(row: int) -> int:
    """The kind in a row's state: EMPTY, IN_PLACE, AS_OBJECT or ABSENT."""
    return row & 255


def offset(row: int) -> int:
    """The offset of the sample of a row AS_OBJECT."""
    return row >> 8
