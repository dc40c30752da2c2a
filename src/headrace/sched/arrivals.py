"""Which samples of an epoch can be published while their payloads come over a network, in whatever order they come.

Indices are drawn in groups and asked for by number. What may be published follows from what has arrived: whole groups
as drawn, in the order drawn or not, or groups of whatever arrived first. No clock, no I/O.

A signal handler may raise, or ask for the state, between any two steps. So what is drawn and what is published changes
by one store of one value, and a sample arrives by one store.
"""

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.sched.acts import Arrangement

T = TypeVar("T")


class _DrawnGroup(NamedTuple):
    """A group as it was drawn."""

    numbers: range
    indices: list[Any]


class _Unpublished(NamedTuple):
    """What was drawn, less what is over."""

    groups: tuple[_DrawnGroup, ...]
    gone: frozenset[int]
    """Numbers in these groups that are published."""
    published: int
    """Groups published so far."""
    over: int
    """Groups drawn that are not among these any more."""


class ArrivedGroup(NamedTuple, Generic[T]):
    """A group that may be published."""

    place: int
    """In the order of publishing."""
    numbers: list[int]
    indices: list[Any]
    payloads: list[T]


class Arrivals(Generic[T]):
    """The samples of one epoch between being drawn and being published; ``T`` is what arrives for each."""

    def __init__(self, arrangement: Arrangement, *, displacement: int = 0) -> None:
        """``displacement``: in free order, groups by which a sample may be overtaken; 0 for any number.

        It is exact where groups are of one size (but for the last), as those of a loader that batches by itself are.
        """
        self._arrangement, self._displacement = arrangement, displacement
        self._at = _Unpublished((), frozenset(), 0, 0)
        self._here: dict[int, T] = {}  # in the order of arrival; those published may linger

    @property
    def missing(self) -> int:
        """Samples drawn that have not arrived."""
        at = self._at
        here = len(self._here) - len(self._here.keys() & at.gone)
        return sum(len(group.numbers) for group in at.groups) - len(at.gone) - here

    def here(self, payload: T) -> int:
        """Samples that have arrived as ``payload`` itself, and are not published."""
        gone = self._at.gone
        return sum(found is payload and number not in gone for number, found in self._here.items())

    def all_missing(self) -> list[int]:
        """Numbers that have not arrived."""
        at = self._at
        drawn = (number for group in at.groups for number in group.numbers)
        return [number for number in drawn if number not in self._here and number not in at.gone]

    def first_missing(self) -> list[int]:
        """Numbers that have not arrived, of the first group that lacks some."""
        at = self._at
        for group in at.groups:
            missing = [number for number in group.numbers if number not in self._here and number not in at.gone]
            if missing:
                return missing
        return []

    @property
    def is_empty(self) -> bool:
        """Whether everything that was drawn is published."""
        at = self._at
        return all(number in at.gone for group in at.groups for number in group.numbers)

    @property
    def drawn(self) -> list[list[Any]]:
        """The groups that were drawn here and are not over: the very lists."""
        return [group.indices for group in self._at.groups]

    def newest(self) -> list[tuple[int, Any]]:
        """Numbers and indices of the group drawn last."""
        group = self._at.groups[-1]
        return list(zip(group.numbers, group.indices, strict=True))

    def draw(self, indices: list[Any], first: int) -> range:
        """A group was drawn; the numbers to ask for its samples by. ``first`` grows from call to call."""
        numbers = range(first, first + len(indices))
        self._at = self._at._replace(groups=(*self._at.groups, _DrawnGroup(numbers, indices)))
        return numbers

    def arrive(self, number: int, payload: T) -> bool:
        """A sample is here; False when nobody waits for it (any more), or it is here already."""
        if number in self._here or self._group_of(number) is None or number in self._at.gone:
            return False
        self._here[number] = payload
        return True

    def arrive_at_once(self, numbers: Iterable[int], payload: T) -> None:
        """Samples of the group drawn last are here without being asked for; those that are here or gone stay so."""
        here, gone = self._here, self._at.gone
        here.update(dict.fromkeys([number for number in numbers if number not in here and number not in gone], payload))

    def _group_of(self, number: int) -> _DrawnGroup | None:
        groups = self._at.groups
        place = bisect_right(groups, number, key=lambda group: group.numbers.start) - 1
        return groups[place] if place >= 0 and number in groups[place].numbers else None

    def next(self) -> ArrivedGroup[T] | None:
        """The next group to publish; None while none is complete. The same group until it was ``publish``-ed."""
        numbers = self._first_here() if self._arrangement is Arrangement.FREE else self._first_whole()
        if numbers is None:
            return None
        return ArrivedGroup(self._at.published, numbers, self._indices(numbers), [self._here[each] for each in numbers])

    def _indices(self, numbers: list[int]) -> list[Any]:
        """Of these. Most stand beside another of the same group, which need not be looked for again."""
        group, found = _DrawnGroup(range(0), []), []
        for number in numbers:
            if number not in group.numbers:
                found_in = self._group_of(number)
                assert found_in is not None
                group = found_in
            found.append(group.indices[number - group.numbers.start])
        return found

    def _first_whole(self) -> list[int] | None:
        at = self._at
        for place, group in enumerate(at.groups):
            # Groups are published whole, so one number tells of all. One of no samples is complete when its turn comes.
            if group.numbers[0] in at.gone if group.numbers else place > 0:
                continue
            if all(number in self._here for number in group.numbers):
                return list(group.numbers)
            if self._arrangement is Arrangement.STRICT:
                return None
        return None

    def _first_here(self) -> list[int] | None:
        at = self._at
        place = at.published - at.over
        if place >= len(at.groups):
            return None
        due = self._due(at)
        if any(number not in self._here for number in due):
            return None
        size = len(at.groups[place].numbers)
        early = (number for number in self._here if number not in at.gone and number not in due)
        found = list(islice(chain(due, early), size))
        return found if len(found) == size else None

    def _due(self, at: _Unpublished) -> list[int]:
        """Free order: numbers that the next group must have."""
        last = at.published - self._displacement - at.over  # the place of the last group that is due
        if not self._displacement or last < 0:
            return []
        due = chain.from_iterable(group.numbers for group in at.groups[: last + 1])
        return [number for number in due if number not in at.gone]

    def publish(self, group: ArrivedGroup[T]) -> None:
        """What ``next`` returned is with the workers now."""
        at = self._at
        gone, published = at.gone.union(group.numbers), at.published + 1
        # In free order the sizes of groups are wanted until as many are published.
        keep = published - at.over if self._arrangement is Arrangement.FREE else len(at.groups)
        over = 0 if group.numbers else 1  # one of no samples is published when it is the first
        while over < min(keep, len(at.groups)) and _is_over(at.groups[over].numbers, gone):
            gone = gone.difference(at.groups[over].numbers)
            over += 1
        self._at = _Unpublished(at.groups[over:], gone, published, at.over + over)
        for number in group.numbers:
            self._here.pop(number, None)

    def is_published(self, group: ArrivedGroup[T]) -> bool:
        """Whether ``publish`` was reached."""
        return self._at.published > group.place

    def waiting(self, besides: AbstractSet[int] = frozenset()) -> list[list[Any]]:
        """What was drawn and not published, in the order of drawing, without the numbers ``besides``."""
        at = self._at
        gone = at.gone | besides
        found = (
            [index for number, index in zip(group.numbers, group.indices, strict=True) if number not in gone]
            for group in at.groups
        )
        return [group for group in found if group]

    def give_up(self) -> None:
        """Nothing more will be published."""
        self._at = _Unpublished((), frozenset(), self._at.published, self._at.over)
        self._here.clear()


def _is_over(numbers: range, gone: AbstractSet[int]) -> bool:
    return bool(numbers) and all(number in gone for number in numbers)
