"""Which samples of an epoch can be published while their payloads come over a network, in whatever order they come.

Indices are drawn in groups and asked for by number. What may be published follows from what has arrived: whole groups
as drawn, in the order drawn or not, or groups of whatever arrived first. No clock, no I/O.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Grouping(Enum):
    """What a published group is made of."""

    STRICT = "as drawn, in the order drawn"
    WHOLE = "as drawn, as they are complete"
    FREE = "the first to arrive"


@dataclass(slots=True)
class _Drawn:
    """A group as it was drawn."""

    first: int
    indices: list[Any]
    missing: int
    open: set[int] = field(default_factory=set)
    """Numbers that were not published yet."""


class Arrivals(Generic[T]):
    """The samples of one epoch between being drawn and being published; ``T`` is what arrives for each."""

    def __init__(self, grouping: Grouping, *, displacement: int = 0, first: int = 0) -> None:
        """``displacement``: in free order, groups by which a sample may be overtaken; 0 for any number. It is exact where
        groups are of one size (but for the last), as those of a loader that batches by itself are.

        ``first``: the number of the first sample; numbers grow by one.
        """
        self._grouping, self._displacement = grouping, displacement
        self._next = first
        self._groups: deque[_Drawn] = deque()  # with samples that were not published, as drawn
        self._of: dict[int, _Drawn] = {}  # number -> its group, while it is not published
        self._here: dict[int, T] = {}  # arrived and not published
        self._oldest: list[int] = []  # free order: a heap of those numbers
        self._sizes: deque[int] = deque()  # free order: of the groups to publish
        self._published = 0
        self._places: dict[int, int] = {}  # free order: first number of a group -> its place in the order of drawing
        self._drawn = 0

    @property
    def missing(self) -> int:
        """Samples drawn that have not arrived."""
        return len(self._of) - len(self._here)

    @property
    def held(self) -> int:
        """Samples that arrived and were not published."""
        return len(self._here)

    def draw(self, indices: Sequence[Any]) -> range:
        """A group was drawn; the numbers to ask for its samples by."""
        numbers = range(self._next, self._next + len(indices))
        self._next = numbers.stop
        group = _Drawn(numbers.start, list(indices), len(indices), set(numbers))
        self._groups.append(group)
        self._of.update(dict.fromkeys(numbers, group))
        if self._grouping is Grouping.FREE:
            self._sizes.append(len(indices))
            self._places[numbers.start] = self._drawn
            self._drawn += 1
        return numbers

    def index(self, number: int) -> Any:
        """The index a number was given to; KeyError when it was published."""
        group = self._of[number]
        return group.indices[number - group.first]

    def arrive(self, number: int, payload: T) -> bool:
        """A sample is here; False when nobody waits for it (any more)."""
        group = self._of.get(number)
        if group is None or number in self._here:
            return False
        self._here[number] = payload
        group.missing -= 1
        if self._grouping is Grouping.FREE:
            heapq.heappush(self._oldest, number)
        return True

    def take(self) -> list[tuple[Any, T]] | None:
        """The next group to publish, as (index, what arrived); None while none is complete."""
        if self._grouping is Grouping.FREE:
            return self._take_free()
        for group in self._groups:
            if group.missing == 0:
                return self._publish([*range(group.first, group.first + len(group.indices))], group)
            if self._grouping is Grouping.STRICT:
                return None
        return None

    def _take_free(self) -> list[tuple[Any, T]] | None:
        if not self._sizes or len(self._oldest) < self._sizes[0]:
            return None
        due = self._published - self._displacement
        if self._displacement and self._groups:
            oldest = self._groups[0]
            # The oldest samples go first, so it is enough that those due now have all arrived.
            if self._places[oldest.first] <= due and any(number not in self._here for number in oldest.open):
                return None
        numbers = [heapq.heappop(self._oldest) for _ in range(self._sizes.popleft())]
        self._published += 1
        return self._publish(numbers, None)

    def _publish(self, numbers: list[int], whole: _Drawn | None) -> list[tuple[Any, T]]:
        found = [(self.index(number), self._here.pop(number)) for number in numbers]
        for number in numbers:
            self._of.pop(number).open.discard(number)
        if whole is not None:
            self._groups.remove(whole)
        while self._groups and not self._groups[0].open and self._grouping is Grouping.FREE:
            self._places.pop(self._groups.popleft().first)
        return found

    def waiting(self) -> list[list[Any]]:
        """What was drawn and not published, in the order of drawing."""
        groups = ([g.indices[number - g.first] for number in sorted(g.open)] for g in self._groups)
        return [group for group in groups if group]

    def give_up(self) -> tuple[list[int], list[T]]:
        """Nothing more will be published: numbers that were asked for and have not come, and what did come."""
        absent = [number for number in self._of if number not in self._here]
        here = list(self._here.values())
        for held in (self._groups, self._of, self._here, self._oldest, self._sizes, self._places):
            held.clear()
        return absent, here
