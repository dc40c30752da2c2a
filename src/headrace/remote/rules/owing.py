"""Accounts of samples asked of lanes elsewhere, until each has arrived or is given back. Time is an argument.

A group is in one place at any moment: waiting, or asked of one lane, or over. A lane that ends, or falls silent, owes
nothing any more, and what it owed waits again. The group that a lane was working on when it ended may have been what
ended it: it is asked again sample by sample, so the sample that ends its lane twice is known, and given back.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

DEATHS = 2
"""Lanes that a single sample may end before it is given back."""
LOOK = 1.0
"""Between two looks no more time than this counts: whoever looks may have been stopped, and the other with it."""


class AskedGroup(NamedTuple, Generic[T]):
    """A group of samples on its way to a lane."""

    number: int
    samples: tuple[T, ...]


@dataclass
class _OwingLane:
    owes: "deque[int]" = field(default_factory=deque)
    """In the order asked, in which it makes them."""
    silent: float = 0.0
    looked: float = 0.0


@dataclass
class _OwedGroup(Generic[T]):
    samples: tuple[T, ...]
    """As they are asked for."""
    gone: set[T] = field(default_factory=set)
    """Samples of it that nobody wants any more."""
    deaths: int = 0

    @property
    def left(self) -> tuple[T, ...]:
        return tuple(sample for sample in self.samples if sample not in self.gone)


class Owing(Generic[T]):
    """Groups and lanes of one run. ``T`` is what a sample is known by."""

    def __init__(self) -> None:
        """Start with nothing asked and nobody there."""
        self._groups: dict[int, _OwedGroup[T]] = {}  # waiting or asked
        self._waiting: deque[int] = deque()
        self._lanes: dict[int, _OwingLane] = {}
        self._numbers = 0

    @property
    def waiting(self) -> int:
        """Samples that no lane was asked for."""
        return sum(len(self._groups[number].samples) for number in self._waiting)

    @property
    def asked(self) -> int:
        """Samples that lanes were asked for, and that somebody wants."""
        owed = (self._groups.get(number) for lane in self._lanes.values() for number in lane.owes)
        return sum(len(group.samples) for group in owed if group is not None)

    @property
    def head(self) -> tuple[T, ...]:
        """Samples that the next lane is asked for; empty while nothing waits."""
        return self._groups[self._waiting[0]].samples if self._waiting else ()

    @property
    def is_idle(self) -> bool:
        """True if nothing is owed."""
        return not self._groups

    @property
    def lanes(self) -> int:
        """The number of lanes that are there."""
        return len(self._lanes)

    def want(self, samples: Iterable[T]) -> int:
        """Add one more group, and return its number."""
        number, self._numbers = self._numbers, self._numbers + 1
        self._groups[number] = _OwedGroup(tuple(samples))
        self._waiting.append(number)
        return number

    def join(self, lane: int, now: float) -> None:
        """A lane is there. Its number was nobody's before."""
        self._lanes[lane] = _OwingLane(looked=now)

    def next(self, lane: int, now: float, depth: int = 2) -> AskedGroup[T] | None:
        """The group to ask this lane for now; None while it owes ``depth`` of them, or nothing waits.

        One is in work, the next one is there when that is done.
        """
        its = self._lanes[lane]
        if len(its.owes) >= depth or not self._waiting:
            return None
        number = self._waiting.popleft()
        if not its.owes:  # it had nothing to say until now
            its.silent, its.looked = 0.0, now
        its.owes.append(number)
        return AskedGroup(number, self._groups[number].samples)

    def heard(self, lane: int) -> None:
        """Note that something came from a lane."""
        if lane in self._lanes:
            self._lanes[lane].silent = 0.0

    def owed(self, lane: int, number: int) -> tuple[T, ...] | None:
        """Samples of the group whose answer begins; None where nobody waits, or this lane owes none."""
        its = self._lanes.get(lane)
        group = self._groups.get(number)
        return None if its is None or group is None or number not in its.owes else group.samples

    def arrived(self, lane: int, number: int) -> tuple[T, ...] | None:
        """Samples of the group whose answer is here, which is over; None where nobody waits for any of them."""
        its = self._lanes.get(lane)
        if its is None or number not in its.owes:
            return None
        its.owes.remove(number)
        its.silent = 0.0
        group = self._groups.pop(number, None)
        return None if group is None else group.samples

    def forget(self, samples: Iterable[T]) -> None:
        """Drop these samples, which nobody wants any more. What was asked of a lane still comes, and finds nobody."""
        gone = set(samples)
        waiting = set(self._waiting)
        for number, group in list(self._groups.items()):
            group.gone.update(gone.intersection(group.samples))
            if number in waiting:
                group.samples, group.gone = group.left, set()
            if not group.left:
                del self._groups[number]
        self._waiting = deque(number for number in self._waiting if number in self._groups)

    def silent(self, now: float, allowed: float, listens: Iterable[int]) -> list[int]:
        """Lanes of those ``listens`` that owe something and have said nothing for longer than ``allowed`` seconds.

        Of others no word is missed: they are not read from.
        """
        heard = set(listens)
        found = []
        for lane, its in self._lanes.items():
            if its.owes and lane in heard:
                its.silent += min(now - its.looked, LOOK)
            else:
                its.silent = 0.0
            its.looked = now
            if its.silent > allowed:
                found.append(lane)
        return found

    def leave(self, lane: int) -> list[T]:
        """The lane is gone: what it owed waits again, first of all. Returns samples that nobody here will make."""
        its = self._lanes.pop(lane, None)
        if its is None:
            return []
        given_back: list[T] = []
        for number in reversed(its.owes):
            group = self._groups.get(number)
            if group is None:
                continue
            group.samples, group.gone = group.left, set()
            if number != its.owes[0]:  # it was not begun
                self._waiting.appendleft(number)
                continue
            group.deaths += 1
            if len(group.samples) > 1:
                del self._groups[number]
                singles = [_OwedGroup((sample,)) for sample in group.samples]
                numbers = range(self._numbers, self._numbers + len(singles))
                self._numbers = numbers.stop
                self._groups.update(zip(numbers, singles, strict=True))
                self._waiting.extendleft(reversed(numbers))
            elif group.deaths < DEATHS:
                self._waiting.appendleft(number)
            else:
                del self._groups[number]
                given_back += group.samples
        return given_back

    def give_back(self) -> list[T]:
        """All that waits and nobody will make, in the order asked: it is made elsewhere."""
        found = [sample for number in self._waiting for sample in self._groups.pop(number).samples]
        self._waiting.clear()
        return found
