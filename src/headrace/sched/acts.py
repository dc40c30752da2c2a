"""What passes between an epoch's machine and whoever does what it says."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

from headrace.plan.lookahead import Lookahead
from headrace.sched import words as W
from headrace.sched.book import Group, Settled


class Arrangement(Enum):
    """How samples become batches, and in which order batches come."""

    STRICT = "as drawn, in the order drawn"
    BATCHES = "as drawn, as they are ready"
    FREE = "the first to finish, as they are ready"


@dataclass(frozen=True, slots=True)
class Terms:
    """What the batches of an epoch are to be."""

    arrangement: Arrangement
    window: Lookahead
    """How many batches to have made ahead."""
    collate: bool = False
    """A worker must collate each batch."""
    drop_last: bool = False
    displacement: int = 0
    """Batches by which a sample may be overtaken in free order; 0: any number."""


class Failed(NamedTuple):
    """A sample that cannot be had."""

    group: Group
    position: int
    blob: int
    """Where its error stands in its group's blob."""

    @property
    def took_worker(self) -> bool:
        """It left no error: it took its worker with it, more often than it may."""
        return self.blob == W.NO_BLOB


class Ready(NamedTuple):
    """A slot to be delivered."""

    slot: int
    group: Group | None
    """Where batches are as drawn."""
    rows: list[int]
    """Those that hold a sample."""
    expected: int
    settled: Settled
    """What is over once it was delivered."""
    failed: list[Failed]
    """Batches as drawn: its samples that failed."""


class Act(IntEnum):
    """What the consumer does before it asks again."""

    GO_ON = 0
    """Nothing: others may have their turn."""
    RING = 1
    """Wake the lanes ``woken``."""
    DRAW = 2
    """Draw the next group: ``drew``, ``dry`` at the end of the epoch, ``stuck`` where it cannot be had now."""
    DRAW_EARLY = 3
    """There is room for ``room`` batches of the next epoch."""
    EXAMINE = 4
    """See whether one of ``failed`` only cannot travel between workers: then begin again, locally."""
    WATCH = 5
    """See after the lanes."""
    JUDGE = 6
    """A sample failed, ``failed[0]``: raise what it left, or ``settle`` it."""
    DELIVER = 7
    """Deliver ``ready``, or ``settle`` it if nothing of it is left."""
    CLOSED = 8
    """Slots ``dropped`` are nobody's any more; wake the lanes ``woken``."""
    WAIT = 9
    """Nothing is there: wait until a lane rings or dies, or say so."""
    END = 10
    """All was delivered."""


class Staff(Protocol):
    """Who knows the workers."""

    @property
    def lanes(self) -> int:
        """How many there are."""


class Handed(Protocol):
    """Something on its way to the user."""

    then: Settled
    """What is over once he has it."""
