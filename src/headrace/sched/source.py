"""Sources of groups of indices, and what a group is: all that the core knows of orders, caches and networks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.sched.hand import NotYet

LOOK_SECONDS = 1.0
"""A source that announces itself by a descriptor is looked at so often besides."""


@dataclass(slots=True, eq=False)
class Group:
    """A batch of indices as it was drawn."""

    indices: list[Any]
    made_of: Sequence[Any] = ()
    """The parts that each sample is made of besides its index; empty where there is no such thing."""
    pack: Callable[[Sequence[Any]], bytes] | None = None
    """Writes ``made_of`` for the process that makes the samples."""
    release: Callable[[Iterable[int]], None] | None = None
    """Told of positions that are settled; also more than once."""
    number: int = -1
    """The group's number in the ledger, while it is in the book."""
    owed: set[int] = field(default_factory=set)
    """Positions that were neither delivered nor given up."""

    @property
    def notes(self) -> bytes:
        """The bytes that tell the process that makes the samples of them."""
        return b"" if self.pack is None else self.pack(self.made_of)


class Source(Protocol):
    """Gives the groups of one epoch, each once. Used by one thread; only the user's sampler may take its time in it."""

    def next(self) -> Group | NotYet | None:
        """The next group, which is the caller's; ``NOT_YET`` while it is under way, None at the end of the epoch.

        Where this raises, nothing was drawn.
        """

    def put_back(self, groups: list[list[Any]]) -> None:
        """Put back indices that were drawn and not delivered; they come first again."""

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        """For a resume: as ``pending``, what is ``owed`` and what waits here; as ``order``, where that stands."""

    def wakes(self) -> tuple[int, int]:
        """A descriptor, and events of it, by which more groups announce themselves; -1: none do."""

    def close(self) -> None:
        """Let go of what is held for groups to come; nothing more is asked for."""
