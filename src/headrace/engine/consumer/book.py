"""The consumer's book-keeping of one epoch: what was drawn, where it went, what is still owed to the user."""

import pickle
from array import array
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import SlabError
from headrace.engine.memory.reservation import BLOB, Reservation
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
            return group, W.INTEGERS, 64
        packed = pickle.dumps(indices)
        size = -(-(8 + len(packed)) // 64) * 64
        if size > BLOB:
            msg = f"the indices of one batch take {size >> 20} MiB, more than the {BLOB >> 20} MiB there is room for"
            raise SlabError(msg)
        at = memory.blob(number)
        memory.bytes[at : at + 8] = len(packed).to_bytes(8, "little")
        memory.bytes[at + 8 : at + 8 + len(packed)] = packed
        return group, W.PICKLED, size

    def settle(self, ticket: int) -> tuple[Group, int]:
        """A ticket was delivered or given up; its group is forgotten with its last one."""
        group, position = self.groups[ticket >> 32], ticket & 0xFFFFFFFF
        group.owed.discard(position)
        if not group.owed:
            del self.groups[group.number]
            self.numbers.put(group.number)
        return group, position

    def retire(self, group: Group) -> None:
        """Nothing of this group is owed any more."""
        if self.groups.pop(group.number, None) is not None:
            self.numbers.put(group.number)

    def owed(self) -> list[list[Any]]:
        """What was drawn and not delivered, in the order of drawing."""
        return [[group.indices[position] for position in sorted(group.owed)] for group in self.groups.values()]
