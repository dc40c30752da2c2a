"""Facts that a lane reads of the ledger and says of itself, without the lock: nobody else writes these words
meanwhile.

What it reads of a group or a slot is of whatever epoch has that number now: who was given up learns it when it next
visits the ledger.
"""

from typing import NamedTuple

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.slots import SlotView
from headrace.sched.ledger_layout import Dims, Words


class GroupFacts(NamedTuple):
    """A batch of indices, as drawn."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    """Tickets."""
    kind: int
    """The way its indices are written."""
    serial: int
    """Tells one use of the group's number from the next."""

    @property
    def is_pickled(self) -> bool:
        """True if the group's indices stand in its blob; else they are words."""
        return bool(self.kind & W.PICKLED)

    @property
    def is_planned(self) -> bool:
        """True if, behind its indices, the group's blob says where what is needed for each sample lies."""
        return bool(self.kind & W.PLANNED)


class LaneFacts(SlotView):
    """The facts of one worker's lane."""

    def __init__(self, words: Words, dims: Dims, lane: int) -> None:
        super().__init__(words, dims)
        dims.check_lane(lane)
        self.lane_number, self.lane = lane, dims.lane(lane)
        self.operation: Words = words[self.lane + W.L_OPERATION : self.lane + W.L_OPERATION + 1]
        """A cell for the number of the operation that the sample being made is at."""

    def initialize(self) -> None:
        """Note that the lane's worker runs ``worker_init_fn``."""
        self.w[self.lane + W.L_STAGE] = W.INITIALIZING

    def work(self) -> None:
        """Note that the lane's worker is at work."""
        self.w[self.lane + W.L_STAGE] = W.AT_WORK

    @property
    def stale(self) -> bool:
        """The epoch this lane works for was given up."""
        return self.w[self.lane + W.L_GENERATION] != self.w[W.GENERATION]

    @property
    def is_local(self) -> bool:
        """True if each batch is made by one worker."""
        return bool(self.w[W.LOCAL])

    @property
    def seed(self) -> int:
        """The seed from which, with the epoch and the index, a sample's random numbers come."""
        return self.w[W.SEED]

    @property
    def first_run(self) -> int:
        """The number that the trace has for the iteration's first epoch."""
        return self.w[W.RUN]

    @property
    def threshold(self) -> int:
        """Nanoseconds after which a sample counts as slow; 0 while unknown."""
        return self.w[W.THRESHOLD]

    def account(self, operations: int) -> Words:
        """The words that hold the costs of so many operations of this lane: see ``headrace.plan.operation_costs``."""
        first = self.dims.account(self.lane_number)
        return self.w[first : first + (operations + 1) * W.COSTS]

    def group(self, group: int) -> GroupFacts:
        at, w = self.dims.group(group), self.w
        return GroupFacts(w[at + W.G_COUNT], w[at + W.G_KIND], w[at + W.G_SERIAL])

    def indices(self, group: int, count: int) -> list[int]:
        """The group's first ``count`` indices, where they are not pickled."""
        first = self.dims.index(group)
        return self.w[first : first + count].tolist()

    def is_repeated(self, group: int, position: int) -> bool:
        """True if a sample is made again, after a death."""
        return E.deaths(self.w[self.dims.ticket(group) + position]) > 0

    def begin(self, position: int, now: int) -> bool:
        """Begin with this one of the lane's tickets, which it makes from ``now`` on (nanoseconds): a death is held
        against it.

        False when this one and the rest were taken away.
        """
        w, lane = self.w, self.lane
        # When before which: whoever looks in between sees the last sample begun anew, not the new one begun long ago.
        w[lane + W.L_BEGAN] = now
        w[lane + W.L_POS] = position
        return position < w[lane + W.L_END]

    def expect(self, now: int) -> None:
        """Note that all the lane's tickets are made together, the last of which begins at ``now``."""
        self.w[self.lane + W.L_WHOLE] = 1
        self.w[self.lane + W.L_BEGAN] = now

    def end(self, position: int) -> None:
        """Note that all tickets before this one are made: a death is nobody's fault any more."""
        self.w[self.lane + W.L_POS] = position

    def collate_alone(self, slot: int) -> None:
        """Note that the lane collates the batch it made alone: from here on a death is held against the collation."""
        self.w[self.lane + W.L_COLLATE] = E.some(slot)

    def drop_collation(self) -> None:
        """Note that the lane collates nothing."""
        self.w[self.lane + W.L_COLLATE] = 0

    def ticket(self, slot: int, row: int) -> tuple[int, int]:
        """The group and the position of the sample that a row holds."""
        return E.parts(E.which(self.w[self.dims.row_ticket(slot) + row]))

    def blob_used(self, group: int) -> int:
        """Bytes of a group's blob that are in use."""
        return self.w[self.dims.group(group) + W.G_BLOB]

    def use_blob(self, group: int, used: int) -> None:
        """Note that so many bytes of a group's blob are in use from now on. The lock is held."""
        self.w[self.dims.group(group) + W.G_BLOB] = used
