"""A batch on its way to the user.

It counts as delivered from the one store that empties its hand, which is what ``next()`` ends with. A hand that was not
emptied, since a handler raised, is handed over by the next call.
"""

from collections import deque
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Then = TypeVar("Then")


class NotYet(Enum):
    """Neither something nor the end."""

    NOT_YET = 0


NOT_YET = NotYet.NOT_YET


class Delivered(NamedTuple):
    """The batch a run delivered last: its number, its samples, and how many others were ready and outstanding then."""

    batch: int = 0
    samples: int = 0
    ready: int = 0
    outstanding: int = 0


class Hand(Generic[Then]):
    """A batch or an error that ``next()`` is about to return or to raise."""

    __slots__ = ("delivered", "load", "then")

    def __init__(self, load: tuple[Any, ...] | BaseException | None, then: Then, delivered: Delivered) -> None:
        """``load``: the batch, first in a tuple, or an error. ``then``: what the run notes once it was delivered."""
        self.load = load
        """The batch or error; None: it was delivered."""
        self.then, self.delivered = then, delivered


Hands = deque[Hand[Then]]
"""The hands of a run, oldest first: not delivered, or delivered and not noted yet."""


def waiting(hands: Hands[Then]) -> Hand[Then] | None:
    """The first that was not delivered: what a handler kept from the user."""
    for hand in hands:
        if hand.load is not None:
            return hand
    return None


class EpochRun(Protocol):
    """The run of one epoch."""

    @property
    def hands(self) -> Hands[Any]:
        """The hands that ``next`` returned and that were not delivered, or not noted as such; oldest first."""

    def next(self, *, block: bool = True) -> Any:
        """The next batch or error, in a hand; or StopIteration."""

    def progress(self) -> dict[str, Any]:
        """The state needed to go on from here."""

    def abandon(self) -> None:
        """Give up the rest."""
