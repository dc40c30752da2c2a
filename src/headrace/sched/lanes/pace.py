"""The number of tickets that a lane takes at once, from what its samples took."""

from headrace.sched.lanes.lane_messages import TakeRule, TakeSize

CHUNK_SECONDS = 0.0005
"""Cheap samples are taken several at a time, for about this long: claiming then costs a fraction of making."""
EVEN_SECONDS, EVEN = 0.016, 4.0
"""And for this long while none took so many times what they take on average: then nothing waits behind a slow one. With
samples of a millisecond all that is done between two chunks costs as much as writing the rows of one."""
FORGETS = 0.98
"""Factor by which a chunk's worst sample counts less with every further chunk."""
CUT_NS = 5_000_000
"""A lane that was shorter than this at a chunk had nothing of it taken away, and ends it without asking."""
WHOLE_SECONDS = 0.02
"""A batch for a user's collate_fn that takes no longer than this is made by one worker, so samples need not travel."""


class Pace:
    """The pace of one lane."""

    def __init__(self, rule: TakeRule, lanes: int) -> None:
        """``lanes``: those that share a group's tickets."""
        self._rule, self._share = rule, max(1, min(lanes, 4))
        self.cost = 0.0
        """Seconds a sample takes, smoothed; 0 while unknown."""
        self._worst = 0.0  # and the worst of them, which is forgotten slowly
        self._writing = 0.0  # and then to be put into its row, smoothed

    def note(self, cost: int, worst: int) -> None:
        """The samples of a chunk took ``cost`` nanoseconds each, one of them ``worst``; 0 where that is not known."""
        seconds = cost / 1e9
        self.cost = seconds if self.cost == 0.0 else 0.8 * self.cost + 0.2 * seconds
        if worst:
            self._worst = max(FORGETS * self._worst, worst / 1e9)

    def wrote(self, cost: int) -> None:
        """Note that samples took ``cost`` nanoseconds each to be put into their rows."""
        self._writing = 0.8 * self._writing + 0.2 * cost / 1e9

    def size(self) -> TakeSize:
        """The number of tickets to take next."""
        if self._rule == TakeRule.EVERYTHING or self.cost == 0.0:
            return TakeSize(self._rule)
        each = self.cost + self._writing
        chunk = least = int(CHUNK_SECONDS / each)
        if 0.0 < self._worst < EVEN * self.cost:
            chunk = int(EVEN_SECONDS / each)
        whole = int(WHOLE_SECONDS / self.cost) if self._rule == TakeRule.WHOLE else 0
        return TakeSize(self._rule, chunk, self._share, least, whole)
