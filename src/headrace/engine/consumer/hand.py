"""A batch on its way to the user, and why no interrupt can lose it or have it delivered twice.

A signal handler runs between any two steps of ``next()``. It may look (``state_dict()``) and it may raise. So what a
state is made of changes by single stores: a batch counts as delivered from the one store that empties its hand, which
is the last thing ``next()`` does. A hand that was not emptied is handed over again by the next call, and whatever else
a run was in the middle of is made again from those facts.
"""

from collections import deque
from enum import Enum
from typing import Any, Generic, TypeVar

from headrace.engine.consumer.tracing import Delivered

Then = TypeVar("Then")


class NotYet(Enum):
    """Neither something nor the end."""

    NOT_YET = 0


NOT_YET = NotYet.NOT_YET


class Hand(Generic[Then]):
    """What ``next()`` is about to return or to raise."""

    __slots__ = ("delivered", "load", "then")

    def __init__(self, load: tuple[Any, ...] | BaseException | None, then: Then, delivered: Delivered) -> None:
        """``load``: the batch, first in a tuple, or an error. ``then``: what the run notes once it was delivered."""
        self.load = load
        """None: it was delivered."""
        self.then, self.delivered = then, delivered


Hands = deque[Hand[Then]]
"""Those of a run, oldest first: not delivered, or delivered and not noted yet."""


def waiting(hands: Hands[Then]) -> Hand[Then] | None:
    """The first that was not delivered: what an interrupt kept from the user."""
    for hand in hands:
        if hand.load is not None:
            return hand
    return None
