"""Which samples of an epoch can be published while their payloads come over a network, in whatever order they come.

Indices are drawn in groups and asked for by number. What may be published follows from what has arrived: whole groups
as drawn, in the order drawn or not, or groups of whatever arrived first. No clock, no I/O.

A signal handler may raise, or ask for the state, between any two steps. So a sample is in one place that decides: it
is open while its number is in ``_open``, here while it is in ``_here``, and everything else is derived from these.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Grouping(Enum):
    """What a published group is made of."""

    STRICT = "as drawn, in the order drawn"
    WHOLE = "as drawn, as they are complete"
    FREE = "the first to arrive"


class _Drawn(NamedTuple):
    """A group as it was drawn."""

    numbers: range
    indices: list[Any]


class Group(NamedTuple, Generic[T]):
    """A group that may be published."""

    place: int
    """In the order of publishing."""
    numbers: list[int]
    indices: list[Any]
    payloads: list[T]


class Arrivals(Generic[T]):
    """The samples of one epoch between being drawn and being published; ``T`` is what arrives for each."""

    def __init__(self, grouping: Grouping, *, displacement: int = 0) -> None:
        """``displacement``: in free order, groups by which a sample may be overtaken; 0 for any number.

        It is exact where groups are of one size (but for the last), as those of a loader that batches by itself are.
        """
        self._grouping, self._displacement = grouping, displacement
        self._groups: dict[int, _Drawn] = {}  # by their place in the order of drawing
        self._drawn = self._published = 0
        self._open: dict[int, Any] = {}  # number -> index, while it is not published
        self._here: dict[int, T] = {}  # what arrived, in the order of arrival, while it is not published

    @property
    def missing(self) -> int:
        """Samples drawn that have not arrived."""
        return len(self._open) - len(self._here)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was drawn is published."""
        return not self._open

    def draw(self, indices: Sequence[Any], first: int) -> range:
        """A group was drawn; the numbers to ask for its samples by. ``first`` grows from call to call."""
        numbers = range(first, first + len(indices))
        self._groups[self._drawn] = _Drawn(numbers, list(indices))
        self._open.update(zip(numbers, indices, strict=True))
        self._drawn += 1
        return numbers

    def arrive(self, number: int, payload: T) -> bool:
        """A sample is here; False when nobody waits for it (any more), or it is here already."""
        if number not in self._open or number in self._here:
            return False
        self._here[number] = payload
        return True

    def next(self) -> Group[T] | None:
        """The next group to publish; None while none is complete. The same group until it was ``published``."""
        numbers = self._first_here() if self._grouping is Grouping.FREE else self._first_whole()
        if numbers is None:
            return None
        indices = [self._open[number] for number in numbers]
        return Group(self._published, numbers, indices, [self._here[number] for number in numbers])

    def _first_whole(self) -> list[int] | None:
        for group in self._groups.values():
            if all(number in self._here for number in group.numbers):
                return list(group.numbers)
            if self._grouping is Grouping.STRICT:
                return None
        return None

    def _first_here(self) -> list[int] | None:
        group = self._groups.get(self._published)
        if group is None or len(self._here) < len(group.indices):
            return None
        due = self._due()
        if any(number not in self._here for number in due):
            return None
        early = (number for number in self._here if number not in due)
        return list(islice(chain(due, early), len(group.indices)))

    def _due(self) -> list[int]:
        """Free order: numbers that the next group must have."""
        last = self._published - self._displacement
        if not self._displacement or last < 0:
            return []
        due = (group.numbers for place, group in self._groups.items() if place <= last)
        return [number for number in chain.from_iterable(due) if number in self._open]

    def published(self, group: Group[T]) -> None:
        """What ``next`` returned is with the workers now. May be said again, by one whom a signal interrupted."""
        for number in group.numbers:
            self._here.pop(number, None)
            self._open.pop(number, None)
        self._published = group.place + 1
        for place in list(self._groups):
            if self._is_over(place):
                self._groups.pop(place, None)
            elif self._grouping is not Grouping.WHOLE:
                break

    def _is_over(self, place: int) -> bool:
        """Whether all samples of a group are published; in free order its size may still be wanted."""
        kept = self._grouping is Grouping.FREE and place >= self._published
        return not kept and not any(number in self._open for number in self._groups[place].numbers)

    def waiting(self) -> list[list[Any]]:
        """What was drawn and not published, in the order of drawing."""
        open_ = dict(self._open)
        found = ([open_[number] for number in group.numbers if number in open_] for group in self._groups.values())
        return [group for group in found if group]

    def give_up(self) -> tuple[list[int], list[T]]:
        """Nothing more will be published: numbers that were asked for and have not come, and what did come."""
        absent = [number for number in self._open if number not in self._here]
        here = list(self._here.values())
        self._groups.clear()
        self._open.clear()
        self._here.clear()
        return absent, here
