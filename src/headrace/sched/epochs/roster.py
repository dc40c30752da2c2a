"""The lanes as those who start and end their workers see them. Without the lock: a lane's words are its own."""

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.ledger_layout import Dims, Words


class LaneStates:
    """All lanes of a run."""

    def __init__(self, words: Words, dims: Dims) -> None:
        self._w, self._dims = words, dims

    def open(self) -> None:
        """Note that no lane is at work."""
        self._w[W.FOREGROUND] = 0

    def add(self, lane: int) -> None:
        """Add a lane that has had no worker yet in this run."""
        for word in range(self._dims.lane(lane), self._dims.lane(lane + 1)):
            self._w[word] = 0
        if self._dims.told:
            self._w[self._dims.story(lane)] = 0
        self._w[W.LANES] = max(self._w[W.LANES], lane + 1)

    def started(self, lane: int) -> None:
        self._w[self._dims.lane(lane) + W.L_STAGE] = W.STARTING

    def is_at_work(self, lane: int) -> bool:
        """True if the lane's worker has come to work."""
        return self._w[self._dims.lane(lane) + W.L_STAGE] == W.AT_WORK

    def is_initializing(self, lane: int) -> bool:
        """True if the lane's worker is in ``worker_init_fn``."""
        return self._w[self._dims.lane(lane) + W.L_STAGE] == W.INITIALIZING

    def begun(self, lane: int) -> int:
        """The time at which the sample that a lane makes was begun, in nanoseconds of the monotonic clock; 0 when
        it makes none.
        """
        w, at = self._w, self._dims.lane(lane)
        making = w[at + W.L_GROUP] and w[at + W.L_POS] < w[at + W.L_END] and not w[at + W.L_WAITING]
        return w[at + W.L_BEGAN] if making else 0

    def index(self, lane: int) -> int | None:
        """The index of that sample, if it is a number; a hint."""
        w, at = self._w, self._dims.lane(lane)
        group = E.which(w[at + W.L_GROUP])
        if group < 0 or w[self._dims.group(group) + W.G_KIND] != W.INTEGERS:
            return None
        return w[self._dims.index(group) + w[at + W.L_POS]]

    def stop(self) -> None:
        """Have lanes leave when they next visit the ledger."""
        self._w[W.STOP] = 1

    def stopped(self) -> None:
        """Note that the lanes have left."""
        self._w[W.STOP] = 0
