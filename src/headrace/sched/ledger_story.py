"""The story that lanes and the trainer tell of tickets, slots and lanes, where the loader was asked to keep one.

A lane writes records of fixed size to a ring of its own among the words: nobody waits for it, and what it wrote is
there after a SIGKILL. A record counts once it was written whole. The trainer puts names to what they say, adds what it
does itself, and has both in one log. Without a story there are no rings (``Dims.told``), and nobody asks.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from headrace.core.story import StoryLog
from headrace.sched import ledger_layout as W
from headrace.sched.ledger_layout import Dims, Words

RECORDS = 1024
"""A lane's ring has so many."""
GROUPS = 1024
"""Groups whose indices are remembered, to put names to what lanes tell: more than can be under way."""


class LaneTold(IntEnum):
    """Kinds of records that a lane tells. What is in a record besides: when, the group's serial, positions, and see
    each.
    """

    TOOK = 0
    MADE = 1
    """Nanoseconds it took."""
    FAILED = 2
    WROTE = 3
    """The batch, and its first row."""
    WAITED = 4
    DROPPED = 5
    COLLATED = 6
    """The batch."""
    MADE_BATCH = 7
    """A stream's: the batch, items."""
    ENDED = 8


class LaneStory:
    """The story records of one lane."""

    def __init__(self, words: Words, dims: Dims, lane: int, clock: Callable[[], int]) -> None:
        """``clock``: nanoseconds. Where nobody asked for a story (``Dims.told``) there is no room for one."""
        self._w, self._dims, self._lane, self._clock = words, dims, dims.lane(lane), clock
        self._ring, self._records = dims.story(lane), dims.told

    def tell(self, what: LaneTold, start: int, end: int, slot: int = -1, more: int = 0) -> None:
        """Tell what happened to the tickets [start, end) of the group held; ``slot``: where; ``more``: see
        ``LaneTold``.
        """
        w, number = self._w, self._w[self._ring]
        batch = w[self._dims.slot(slot) + W.S_BATCH] if slot >= 0 else -1
        record = self._clock(), what, w[self._lane + W.L_SERIAL], start, end, batch, more
        at = self._ring + 1 + number % self._records * W.TOLD
        w[at : at + W.TOLD] = array("q", record)
        w[self._ring] = number + 1  # from here on it counts


class Story:
    """The trainer's part of the story: of one run's memory, told to the loader's log."""

    def __init__(self, words: Words, dims: Dims, log: StoryLog) -> None:
        self._w, self._dims, self.log = words, dims, log
        self._groups: dict[int, Sequence[Any]] = {}  # by serial: their indices
        self._read: dict[int, int] = {}  # by lane: records that are in the log
        self._gathering: dict[int, object] = {}  # under 0: whoever does

    def published(
        self, group: int, slot: int, indices: Sequence[Any], ahead: Sequence[int], when: int, *, free: bool
    ) -> None:
        """A group was drawn (``when``: by the clock) and its tickets are queued, those ``ahead`` before their turn."""
        self._groups[self._w[self._dims.group(group) + W.G_SERIAL]] = indices
        while len(self._groups) > GROUPS:
            del self._groups[next(iter(self._groups))]
        where = "a row of the batch that is filling when it is made" if free else f"batch {self._batch(slot)}"
        epoch = self._w[W.EPOCH]
        self.log.tell("loader", "drawn", f"in epoch {epoch}, for {where}", indices, when)
        if ahead:
            why = "ahead of its turn: it was extraordinarily slow before"
            self.log.tell("loader", "queued ahead", why, [indices[position] for position in ahead], when)

    def handed_out(self, slot: int, indices: Iterable[Any]) -> None:
        """A batch is complete and on its way to the user."""
        self.gather()
        self.log.tell("loader", "handed out", f"in batch {self._batch(slot)}", indices)

    def put_aside(self, lane: int, threshold: int) -> None:
        """A lane's place goes to another."""
        making = self._w[self._dims.lane(lane) + W.L_POS]
        why = f"worker {lane} is at it for more than {_seconds(threshold)}; another works in its place"
        self.log.tell("loader", "put aside", why, self._named(lane, making, making + 1))

    def relieved(self, lane: int, first: int, end: int, threshold: int) -> None:
        """A lane's tickets [first, end) are taken from it."""
        (slow,) = self._named(lane, first - 1, first) or ("?",)
        why = f"from worker {lane}, which is at sample {slow!r} for more than {_seconds(threshold)}; queued for others"
        self.log.tell("loader", "taken back", why, self._named(lane, first, end))

    def died(self, lane: int, pid: int, how: str) -> None:
        """A worker did; its lane was not repaired yet."""
        self.gather()
        making, (start, end) = self._w[self._dims.lane(lane) + W.L_POS], self._span(lane)
        at = self._named(lane, making, making + 1) if start <= making < end else ()
        why = f"process {pid} {how}" + (f", while it made sample {at[0]!r}" if at else "")
        self.log.tell(f"worker {lane}", "died", why, self._named(lane, start, end))

    def queued_again(self, lane: int, tickets: Iterable[tuple[int, int]]) -> None:
        """Tell that these (groups, positions), held by a lane that died, are queued again."""
        found = [index for group, at in tickets for index in self._index(group, at)]
        if found:
            self.log.tell("loader", "queued again", f"worker {lane}, which held it, died", found)

    def given_up_on(self, group: int, position: int, deaths: int) -> None:
        """A sample took too many workers with it."""
        self.log.tell("loader", "failed", f"{deaths} workers died while they made it", self._index(group, position))

    def judged(self, index: Any, error: str | None) -> None:
        """A sample that failed leaves the loader: raised, or left out, as ``on_error`` says."""
        self.log.tell("loader", "reported", error or "it took its workers with it", [index])

    def begun_again(self, indices: Iterable[Any], why: str) -> None:
        """Tell that what was under way is void; these indices are still owed."""
        self.gather()
        self.log.tell("loader", "begun again", why, indices)

    def gather(self) -> None:
        """Put what lanes have told into the log, unless another thread, or whom a handler interrupts, is at it."""
        mine = object()
        try:
            if self._gathering.setdefault(0, mine) is mine:
                for lane in range(self._w[W.LANES]):
                    self._gather(lane)
        finally:  # calls nothing, so no handler keeps it from being done
            if 0 in self._gathering and self._gathering[0] is mine:
                del self._gathering[0]

    def _gather(self, lane: int) -> None:
        ring, read = self._dims.story(lane), self._read.get(lane, 0)
        told = self._w[ring]
        numbers = range(max(read, told - self._dims.told + 1), told)
        records = [self._record(ring, number) for number in numbers]
        whole = self._w[ring] - self._dims.told  # up to here, they may have been overwritten meanwhile
        for number, record in zip(numbers, records, strict=True):
            self._read[lane] = number + 1  # before it is told: an interrupt has nothing told twice
            if number > whole:
                self._tell(lane, *record)

    def _record(self, ring: int, number: int) -> list[int]:
        at = ring + 1 + number % self._dims.told * W.TOLD
        return self._w[at : at + W.TOLD].tolist()

    def _tell(self, lane: int, when: int, what: int, serial: int, start: int, end: int, batch: int, more: int) -> None:
        indices = self._groups.get(serial, ())[start:end]
        others = f", with {end - start - 1} others" if end - start > 1 else ""
        said = {
            LaneTold.TOOK: ("took", others[2:]),
            LaneTold.MADE: ("made", f"in {_seconds(more)}{others}"),
            LaneTold.FAILED: ("failed", "it raised, or cannot be sent"),
            LaneTold.WROTE: ("wrote", f"to row{'s' if others else ''} {more} of batch {batch}{others}"),
            LaneTold.WAITED: ("waits", "all rows that it may have are taken: see max_displacement"),
            LaneTold.DROPPED: ("dropped", "the epoch was given up or begun again meanwhile"),
            LaneTold.COLLATED: ("collated", f"batch {batch}"),
            LaneTold.MADE_BATCH: ("made", f"batch {batch}, {more} items of its stream"),
            LaneTold.ENDED: ("ended", "its stream has nothing more"),
        }[LaneTold(what)]
        self.log.tell(f"worker {lane}", *said, indices, when)

    def _batch(self, slot: int) -> int:
        return self._w[self._dims.slot(slot) + W.S_BATCH]

    def _span(self, lane: int) -> tuple[int, int]:
        """The positions that a lane holds; none where it holds nothing."""
        at = self._dims.lane(lane)
        return (self._w[at + W.L_START], self._w[at + W.L_END]) if self._w[at + W.L_GROUP] else (0, 0)

    def _named(self, lane: int, start: int, end: int) -> Sequence[Any]:
        """The indices of tickets of the group that a lane holds."""
        return self._groups.get(self._w[self._dims.lane(lane) + W.L_SERIAL], ())[start:end]

    def _index(self, group: int, position: int) -> Sequence[Any]:
        """The index of a ticket; none where it is forgotten."""
        return self._groups.get(self._w[self._dims.group(group) + W.G_SERIAL], ())[position : position + 1]


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3g} s" if nanoseconds >= 1_000_000_000 else f"{nanoseconds / 1e6:.3g} ms"
