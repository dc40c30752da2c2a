"""The trainer's book-keeping of one epoch: what was drawn, where it went, what is still owed to the user."""

from collections.abc import Iterable
from typing import Any

from headrace.sched.encoding import grouped
from headrace.sched.source import Group

Settled = list[tuple[Group, set[int]]]
"""Groups, and positions in each."""


def indices_of(settled: Settled) -> list[Any]:
    """The indices of settled samples."""
    return [group.indices[position] for group, positions in settled for position in sorted(positions)]


class Book:
    """Groups of one epoch in the order in which they were drawn."""

    def __init__(self) -> None:
        """Begin empty."""
        self._free: list[int] = []  # numbers that groups had
        self.groups: dict[int, Group] = {}

    def enter(self, group: Group) -> None:
        """Number a group that was drawn, and list it."""
        group.number = self._free.pop() if self._free else len(self.groups)
        group.owed = set(range(len(group.indices)))
        self.groups[group.number] = group

    def strike(self, group: Group) -> None:
        """Take back ``enter``, if that was done: the group cannot be published."""
        if self.groups.get(group.number) is group:
            del self.groups[group.number]
            self._free.append(group.number)

    def find(self, tickets: Iterable[int]) -> Settled:
        """The groups that tickets belong to, as the ledger's rows name them, and their positions there."""
        return [(self.groups[number], positions) for number, positions in grouped(tickets).items()]

    def settle(self, settled: Settled) -> None:
        """Note that these samples were delivered or given up; a group is forgotten with its last one. Doing it
        again changes nothing.
        """
        for group, positions in settled:
            group.owed -= positions
            if group.release is not None:
                group.release(positions)
            if not group.owed and self.groups.get(group.number) is group:
                del self.groups[group.number]
                self._free.append(group.number)

    def owed(self, handed: Iterable[Settled]) -> list[list[Any]]:
        """The indices that were drawn and are not ``handed`` out, in the order of drawing."""
        gone: dict[int, set[int]] = {}
        for settled in handed:
            for group, positions in settled:
                gone.setdefault(id(group), set()).update(positions)
        return [
            [group.indices[position] for position in sorted(group.owed - gone.get(id(group), set()))]
            for group in self.groups.values()
        ]
