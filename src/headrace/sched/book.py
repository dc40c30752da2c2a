"""The consumer's book-keeping of one epoch: what was drawn, where it went, what is still owed to the user."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.sched.encoding import grouped


@dataclass(slots=True)
class Group:
    """One batch of indices as it was drawn."""

    number: int
    indices: list[Any]
    release: Callable[[Iterable[int]], None] | None = None
    """Told of positions that are settled; also more than once."""
    owed: set[int] = field(default_factory=set)
    """Positions that were neither delivered nor given up."""


Settled = list[tuple[Group, set[int]]]
"""Groups, and positions in each."""


def indices_of(settled: Settled) -> list[Any]:
    """What they are."""
    return [group.indices[position] for group, positions in settled for position in sorted(positions)]


class Numbers:
    """Numbers of groups: each belongs to one group at a time, of whatever epoch."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._count = 0

    def take(self) -> int:
        """One that nobody has; the one used last."""
        if self._free:
            return self._free.pop()
        self._count += 1
        return self._count - 1

    def put(self, number: int) -> None:
        self._free.append(number)


class Book:
    """Groups of one epoch in the order in which they were drawn."""

    def __init__(self, numbers: Numbers) -> None:
        """Empty. ``numbers`` are shared by epochs that are in the ledger at once."""
        self.numbers = numbers
        self.groups: dict[int, Group] = {}

    def enter(self, indices: list[Any], release: Callable[[Iterable[int]], None] | None = None) -> Group:
        """A group was drawn."""
        group = Group(self.numbers.take(), indices, release, set(range(len(indices))))
        self.groups[group.number] = group
        return group

    def find(self, tickets: Iterable[int]) -> Settled:
        """The groups that tickets belong to, as the ledger's rows name them, and their positions there."""
        return [(self.groups[number], positions) for number, positions in grouped(tickets).items()]

    def settle(self, settled: Settled) -> None:
        """These were delivered or given up; a group is forgotten with its last one. Doing it again changes nothing."""
        for group, positions in settled:
            group.owed -= positions
            if group.release is not None:
                group.release(positions)
            if not group.owed and self.groups.get(group.number) is group:
                del self.groups[group.number]
                self.numbers.put(group.number)

    def owed(self, delivered: Iterable[Settled], besides: list[Any] | None) -> list[list[Any]]:
        """What was drawn and not delivered, in the order of drawing.

        ``delivered``: what was, and is not settled yet. ``besides``: the indices of a group that is not to be listed.
        """
        gone: dict[int, set[int]] = {}
        for settled in delivered:
            for group, positions in settled:
                gone.setdefault(id(group), set()).update(positions)
        return [
            [group.indices[position] for position in sorted(group.owed - gone.get(id(group), set()))]
            for group in list(self.groups.values())
            if group.indices is not besides
        ]
