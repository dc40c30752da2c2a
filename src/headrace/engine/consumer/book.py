"""The consumer's book-keeping of one epoch: what was drawn, where it went, what is still owed to the user."""

import pickle
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import SlabError
from headrace.engine.consumer.arriving import Planned
from headrace.engine.memory.reservation import BLOB, Reservation
from headrace.engine.staging.plans import Allotted
from headrace.sched import words as W


@dataclass(slots=True)
class Group:
    """One batch of indices as it was drawn."""

    number: int
    indices: list[Any]
    slot: int
    """-1 where rows are claimed on completion."""
    owed: set[int] = field(default_factory=set)
    """Positions that were neither delivered nor given up."""


Settled = list[tuple[Group, set[int]]]
"""Groups, and positions in each."""


class Numbers:
    """Numbers of groups: each belongs to one group at a time, of whatever epoch."""

    def __init__(self) -> None:
        """All are free."""
        self._free: list[int] = []
        self._count = 0

    def take(self) -> int:
        """One that nobody has; the one used last."""
        if self._free:
            return self._free.pop()
        self._count += 1
        return self._count - 1

    def put(self, number: int) -> None:
        """It is free again."""
        self._free.append(number)


class Book:
    """Groups of one epoch in the order in which they were drawn."""

    def __init__(self, memory: Reservation, numbers: Numbers) -> None:
        """Empty. ``numbers`` are shared by epochs that are in the ledger at once."""
        self._memory, self.numbers = memory, numbers
        self.groups: dict[int, Group] = {}

    def write(self, indices: list[Any], slot: int) -> tuple[Group, int, int]:
        """Enter a group and write its indices where workers read them; (group, kind, blob bytes)."""
        memory = self._memory
        if len(indices) > memory.dims.rows:
            msg = f"a batch of {len(indices)} samples is larger than the {memory.dims.rows} a batch may have"
            raise SlabError(msg)
        number = self.numbers.take()
        if number >= memory.dims.groups:
            msg = f"more than {memory.dims.groups} batches are outstanding; use a smaller prefetch_factor"
            raise SlabError(msg)
        group = Group(number, indices, slot, set(range(len(indices))))
        self.groups[number] = group
        if set(map(type, indices)) == {int} and max(indices) < 1 << 63 and min(indices) >= -(1 << 63):
            first = memory.dims.index(number)
            memory.words[first : first + len(indices)] = memoryview(array("q", indices))
            return self._planned(group, W.INTEGERS, 0)
        packed = pickle.dumps(list(indices))
        size = -(-(8 + len(packed)) // 64) * 64
        if size > BLOB:
            msg = f"the indices of one batch take {size >> 20} MiB, more than the {BLOB >> 20} MiB there is room for"
            raise SlabError(msg)
        at = memory.blob(number)
        memory.bytes[at : at + 8] = len(packed).to_bytes(8, "little")
        memory.bytes[at + 8 : at + 8 + len(packed)] = packed
        return self._planned(group, W.PICKLED, size)

    def _planned(self, group: Group, kind: int, used: int) -> tuple[Group, int, int]:
        """Behind the ``used`` bytes of the blob, what the group's samples are made of: rows brought, or a cache's."""
        if not isinstance(group.indices, (Planned, Allotted)):
            return group, kind, max(64, used)
        packed = group.indices.packed()
        at = self._memory.blob(group.number) + used
        if used + len(packed) > BLOB:
            msg = f"a batch of {len(group.indices)} samples is larger than a batch from a network or a cache may be"
            raise SlabError(msg)
        self._memory.bytes[at : at + len(packed)] = packed
        return group, kind | W.PLANNED, max(64, -(-(used + len(packed)) // 64) * 64)

    def find(self, tickets: Iterable[int]) -> Settled:
        """The groups that tickets belong to, and their positions there."""
        found: dict[int, set[int]] = {}
        for ticket in tickets:
            found.setdefault(ticket >> 32, set()).add(ticket & 0xFFFFFFFF)
        return [(self.groups[number], positions) for number, positions in found.items()]

    def settle(self, settled: Settled) -> None:
        """These were delivered or given up; a group is forgotten with its last one. Doing it again changes nothing."""
        for group, positions in settled:
            group.owed -= positions
            if isinstance(group.indices, Planned):
                group.indices.settled(positions)
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
