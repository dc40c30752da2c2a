"""Selection of the samples of an epoch that can be published while their payloads come over a network, in whatever
order they come.

Indices are drawn in groups and asked for by number. What may be published follows from what has arrived: whole groups
as drawn, in the order drawn or not, or groups of whatever arrived first. No clock, no I/O.
"""

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.sched.epochs.trainer_commands import Arrangement

T = TypeVar("T")


class _DrawnGroup(NamedTuple):
    """A group as it was drawn."""

    numbers: range
    indices: list[Any]


class ArrivedGroup(NamedTuple, Generic[T]):
    """A group that may be published."""

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
        self._groups: list[_DrawnGroup] = []
        self._gone: set[int] = set()  # numbers in these groups that are published
        self._published = 0  # groups
        self._over = 0  # groups drawn that are not among these any more
        self._here: dict[int, T] = {}  # in the order of arrival

    @property
    def drawn(self) -> int:
        """Samples of groups that are not wholly published."""
        return sum(len(group.numbers) for group in self._groups)

    @property
    def missing(self) -> int:
        """Samples drawn that have not arrived."""
        return sum(len(group.numbers) for group in self._groups) - len(self._gone) - len(self._here)

    @property
    def here(self) -> int:
        """Samples that have arrived and are not published."""
        return len(self._here)

    def holds(self, number: int) -> bool:
        """True if a number that was drawn is not published."""
        return number not in self._gone and self._group_of(number) is not None

    def publishable(self) -> int:
        """Groups that may be published now, one after the other; in free order, as many as samples are there for."""
        if self._arrangement is Arrangement.FREE:
            place = self._published - self._over
            size = len(self._groups[place].numbers) if place < len(self._groups) else 0
            return len(self._here) // size if size else 0
        count = 0
        for group in self._groups:
            if group.numbers and group.numbers[0] not in self._gone:
                if all(number in self._here for number in group.numbers):
                    count += 1
                elif self._arrangement is Arrangement.STRICT:
                    break
        return count

    def all_missing(self) -> list[int]:
        """Numbers that have not arrived."""
        drawn = (number for group in self._groups for number in group.numbers)
        return [number for number in drawn if number not in self._here and number not in self._gone]

    def first_missing(self) -> list[int]:
        """Numbers that have not arrived, of the first group that lacks some."""
        for group in self._groups:
            missing = [number for number in group.numbers if number not in self._here and number not in self._gone]
            if missing:
                return missing
        return []

    @property
    def is_empty(self) -> bool:
        """True if everything that was drawn is published."""
        return all(number in self._gone for group in self._groups for number in group.numbers)

    def draw(self, indices: list[Any], first: int) -> range:
        """A group was drawn; the numbers to ask for its samples by. ``first`` grows from call to call."""
        numbers = range(first, first + len(indices))
        self._groups.append(_DrawnGroup(numbers, indices))
        return numbers

    def arrive(self, number: int, payload: T) -> bool:
        """A sample is here; False when nobody waits for it (any more), or it is here already."""
        if number in self._here or self._group_of(number) is None or number in self._gone:
            return False
        self._here[number] = payload
        return True

    def arrive_at_once(self, numbers: Iterable[int], payload: T) -> None:
        """Samples of the group drawn last are here without being asked for; those that are here or gone stay so."""
        here, gone = self._here, self._gone
        here.update(dict.fromkeys([number for number in numbers if number not in here and number not in gone], payload))

    def _group_of(self, number: int) -> _DrawnGroup | None:
        groups = self._groups
        place = bisect_right(groups, number, key=lambda group: group.numbers.start) - 1
        return groups[place] if place >= 0 and number in groups[place].numbers else None

    def next(self) -> ArrivedGroup[T] | None:
        """The next group to ``publish``; None while none is complete."""
        numbers = self._first_here() if self._arrangement is Arrangement.FREE else self._first_whole()
        if numbers is None:
            return None
        return ArrivedGroup(numbers, self._indices(numbers), [self._here[each] for each in numbers])

    def _indices(self, numbers: list[int]) -> list[Any]:
        """The indices of these numbers. Most stand beside another of the same group, which need not be looked for
        again.
        """
        group, found = _DrawnGroup(range(0), []), []
        for number in numbers:
            if number not in group.numbers:
                found_in = self._group_of(number)
                assert found_in is not None
                group = found_in
            found.append(group.indices[number - group.numbers.start])
        return found

    def _first_whole(self) -> list[int] | None:
        for place, group in enumerate(self._groups):
            # Groups are published whole, so one number tells of all. One of no samples is complete when its turn comes.
            if group.numbers[0] in self._gone if group.numbers else place > 0:
                continue
            if all(number in self._here for number in group.numbers):
                return list(group.numbers)
            if self._arrangement is Arrangement.STRICT:
                return None
        return None

    def _first_here(self) -> list[int] | None:
        place = self._published - self._over
        if place >= len(self._groups):
            return None
        due = self._due()
        if any(number not in self._here for number in due):
            return None
        size = len(self._groups[place].numbers)
        found = list(islice(chain(due, (number for number in self._here if number not in due)), size))
        return found if len(found) == size else None

    def _due(self) -> list[int]:
        """Numbers that the next group must have, in free order."""
        last = self._published - self._displacement - self._over  # the place of the last group that is due
        if not self._displacement or last < 0:
            return []
        due = chain.from_iterable(group.numbers for group in self._groups[: last + 1])
        return [number for number in due if number not in self._gone]

    def publish(self, group: ArrivedGroup[T]) -> None:
        """Note that the workers now have the group that ``next`` returned."""
        self._gone.update(group.numbers)
        self._published += 1
        for number in group.numbers:
            del self._here[number]
        # In free order the sizes of groups are wanted until as many are published.
        keep = self._published - self._over if self._arrangement is Arrangement.FREE else len(self._groups)
        over = 0 if group.numbers else 1  # one of no samples is published when it is the first
        while over < min(keep, len(self._groups)) and _is_over(self._groups[over].numbers, self._gone):
            self._gone.difference_update(self._groups[over].numbers)
            over += 1
        del self._groups[:over]
        self._over += over

    def waiting(self) -> list[list[Any]]:
        """The indices that were drawn and not published, by group, in the order of drawing."""
        found = (
            [index for number, index in zip(group.numbers, group.indices, strict=True) if number not in self._gone]
            for group in self._groups
        )
        return [group for group in found if group]

    def give_up(self) -> None:
        """Give up: nothing more will be published."""
        self._groups.clear()
        self._gone.clear()
        self._here.clear()


def _is_over(numbers: range, gone: AbstractSet[int]) -> bool:
    return bool(numbers) and all(number in gone for number in numbers)
