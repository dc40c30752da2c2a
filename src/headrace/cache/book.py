"""A rank at the ledger of a shared cache, wherever that is kept, and what it is told there."""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from headrace.cache.division import Division, Facts, Parts, Rank, Sums
from headrace.cache.tier import Key
from headrace.cache.words import Array


def title(scopes: tuple[str, str, str], samples: int) -> str:
    """What the ledger of a dataset is called, wherever it is kept."""
    return hashlib.blake2b(":".join((*scopes, str(samples))).encode(), digest_size=8).hexdigest()


class Entry(NamedTuple):
    """A sample held in a form."""

    sample: int
    form: int


class Grant(NamedTuple):
    """Whether there is room for a newcomer, and what has to be deleted for it, in any case."""

    granted: bool
    evicted: list[Entry]


class Serving(NamedTuple):
    """A sample to be delivered: from which form (``words.NOWHERE``: from the store), and in which to keep it."""

    sample: int
    form: int
    keep: int


class Answer(NamedTuple):
    """What a request gets."""

    servings: list[Serving]
    dropped: list[Entry]
    """No longer of use, or over its form's share of the room: to be deleted."""
    refills: list[Serving]
    """To be read, prepared and kept for nobody in particular."""


class Book(Protocol):
    """A rank at a ledger, wherever that is kept. Entries that a method returns must be deleted from the tier."""

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> list[Entry]:
        """See ``ledger.Seat.begin``."""

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``ledger.Seat.request``."""

    @property
    def badge(self) -> tuple[int, int]:
        """The seat, -1 if there is none now, and who sits there: for processes that keep things for this rank."""

    def stand_in(self, badge: tuple[int, int]) -> None:
        """Keep, and report what is lost, for the rank with that badge; this object then has no seat of its own."""

    def reserve(self, sample: int, form: int, size: int) -> Grant: ...

    def settle(self, sample: int, *, served: bool = True) -> bool: ...

    def cancel(self, sample: int) -> None: ...

    def lost(self, sample: int, form: int) -> None: ...

    def bury(self, lives: Callable[[int], bool]) -> list[Entry]:
        """Give up what this rank's processes have reserved that do not live any more, by what ``lives`` says of each.

        For the rank itself, which has the processes on its host.
        """

    def agree(self, parts: Parts | None, room: int) -> None:
        """A rank has come: how the user wants ``room`` bytes divided, if he says; see ``division.agree``."""

    def measure(self, sums: Sums) -> None:
        """Add what a process of this rank measured."""

    def report(self, rank: Rank) -> None:
        """What this rank says of itself."""

    def facts(self) -> Facts:
        """What a division is planned from."""

    def divide(self, new: Division) -> bool:
        """Have a new division hold for all jobs; False if another came first, or a user has fixed one.

        Sums measured so far count half from then on.
        """

    def adopt(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """A tier may outlive its ledger: take in what a tier has, if the ledger is new; what is of no use."""

    def useless(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """Those that no ledger with a living rank knows: what a changed transform, or a death, left."""

    def counts(self) -> dict[str, int]:
        """What the ledger counted, of all jobs together: ``admitted``, ``evicted``, ``lost``, and bytes held."""

    def leave(self) -> list[Entry]:
        """Idempotent."""
