"""What a cache says about the samples of a group, from the training process to its workers."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

LOOK = 7
"""Stands for a form: look for the sample in the cache, which may or may not have it."""
_BADGE, _PLAN = struct.Struct("<qQ"), struct.Struct("<BB")


class Plan(NamedTuple):
    """Of one sample: the form to begin with and the form to keep it in, 0 for none, and for whom it is kept."""

    form: int
    keep: int
    badge: tuple[int, int]


class Allotted(list[Any]):
    """Indices of a group, with a plan for each."""

    def __init__(self, indices: Sequence[Any], forms: Sequence[tuple[int, int]], badge: tuple[int, int]) -> None:
        """``forms``: to begin with and to keep; ``badge``: of the rank that was served them."""
        super().__init__(indices)
        self._forms, self._badge = forms, badge

    @property
    def plans(self) -> list[Plan]:
        """One for each index."""
        return [Plan(form, keep, self._badge) for form, keep in self._forms]

    def packed(self) -> bytes:
        """The plans, for another process."""
        return pack(self.plans)


def pack(plans: Sequence[Plan]) -> bytes:
    """For another process. Plans of one group are kept under one badge, the newest."""
    badge = plans[-1].badge if plans else (-1, 0)
    return _BADGE.pack(*badge) + b"".join(_PLAN.pack(plan.form, plan.keep) for plan in plans)


def read(body: memoryview, count: int) -> list[Plan]:
    """The plans of ``count`` samples that ``pack`` wrote."""
    badge = _BADGE.unpack_from(body)
    forms = _PLAN.iter_unpack(body[_BADGE.size : _BADGE.size + count * _PLAN.size])
    return [Plan(form, keep, badge) for form, keep in forms]
