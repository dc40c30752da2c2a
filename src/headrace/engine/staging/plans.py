"""What a cache says about the samples of a group, from the training process to its workers."""

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import Any, NamedTuple

_PLAN = struct.Struct("<QB")


class Plan(NamedTuple):
    """Of one sample: the word of the entry to begin with, or ``LOOK``, and the form to keep it in; 0 for none."""

    word: int
    keep: int


class Allotted(list[Any]):
    """Indices of a group, with a plan for each."""

    def __init__(self, indices: Sequence[Any], plans: Sequence[Plan]) -> None:
        """One plan for each."""
        super().__init__(indices)
        self.plans = plans

    def packed(self) -> bytes:
        """The plans, for another process."""
        return pack(self.plans)


def pack(plans: Sequence[Plan]) -> bytes:
    """For another process."""
    return b"".join(starmap(_PLAN.pack, plans))


def read(body: memoryview, count: int) -> list[Plan]:
    """The plans of ``count`` samples that ``pack`` wrote."""
    return [Plan(*found) for found in _PLAN.iter_unpack(body[: count * _PLAN.size])]
