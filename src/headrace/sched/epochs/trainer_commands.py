"""Commands of an epoch's machine, and the facts exchanged with whoever carries them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.plan.lookahead import Lookahead
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.book import Settled
from headrace.sched.source import Group


class Arrangement(Enum):
    """Rules by which samples become batches, and the order in which batches come."""

    STRICT = "as drawn, in the order drawn"
    BATCHES = "as drawn, as they are ready"
    FREE = "the first to finish, as they are ready"


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that the batches of an epoch have to meet."""

    arrangement: Arrangement
    window: Lookahead
    """The number of batches to have made ahead."""
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
    """The offset of its error in its group's blob."""

    @property
    def took_worker(self) -> bool:
        """True if the sample left no error because it took its worker with it, more often than it may."""
        return self.blob == W.NO_BLOB


class ReadySlot(NamedTuple):
    """A slot to be delivered."""

    slot: int
    group: Group | None
    """The slot's group, where batches are as drawn."""
    rows: list[int]
    """The rows that hold a sample."""
    expected: int
    settled: Settled
    """The samples that are over once it was delivered."""
    failed: list[Failed]
    """Batches as drawn: its samples that failed."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Continue with nothing to be done: others may have their turn."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Wake lanes."""

    lanes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw the next group: ``drew``, ``dry`` at the end of the epoch, ``stuck`` where it cannot be had now."""

    must: bool
    """Past the limit of memory, if need be: nothing else is under way."""


@dataclass(frozen=True, slots=True)
class CheckSendable:
    """See whether one of ``failed`` only cannot travel between workers: then begin again, locally."""

    failed: list[Failed]


@dataclass(frozen=True, slots=True)
class SeeAfterLanes:
    """See after slow samples, dead workers, and how many of them work."""


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Judge a sample that failed: raise what it left, or ``settle`` it."""

    failed: Failed


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver a slot, or ``settle`` it if nothing of it is left."""

    ready: ReadySlot


@dataclass(frozen=True, slots=True)
class Release:
    """Release slots, which are nobody's any more; wake lanes."""

    slots: list[int]
    lanes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a lane rings or dies, or say so: nothing is there."""


@dataclass(frozen=True, slots=True)
class End:
    """End: all was delivered."""


GO_ON, SEE_AFTER_LANES, WAIT, END = GoOn(), SeeAfterLanes(), Wait(), End()
Command = GoOn | Ring | Draw | CheckSendable | SeeAfterLanes | ReportFailure | Deliver | Release | Wait | End
"""The trainer's next action, before it asks again."""


class Staff(Protocol):
    """Protocol of the object that knows the workers."""

    @property
    def lanes(self) -> int:
        """The number of lanes."""
