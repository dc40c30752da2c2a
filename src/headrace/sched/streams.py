"""The ledger of iterable datasets: every lane makes batches of its own, as many as the consumer allows.

What a lane has made survives its death; what it was making is made again. The consumer's methods want the lock held.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from headrace.sched import encoding as E
from headrace.sched import words as W
from headrace.sched.moves import Next
from headrace.sched.words import Dims, Words

MOST_AHEAD = W.STREAM_RING
"""Slots that one stream may have ahead."""
DEATHS_ALLOWED = W.DEATHS_ALLOWED
"""Over one batch of a stream."""


class StreamTurn(NamedTuple):
    """What a lane does next."""

    what: Next
    """``TICKETS``: the next batch of its stream, or it says that there is none."""
    slot: int
    """Where that goes."""
    fresh: bool
    """An epoch has begun since the last turn: it begins its stream."""


class StreamBatch(NamedTuple):
    """What a lane made of its turn."""

    items: int
    """Samples in it."""
    offset: int
    size: int
    """Where it stands in its slot's memory, or the error in its place."""
    failed: bool
    note: int = -1
    """Where that stands which the stream can be taken up from after it; -1: nowhere."""
    last: bool = False
    """The stream ended while it was made."""


class LaneStream:
    """One worker's stream."""

    def __init__(self, words: Words, dims: Dims, lane: int, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared. ``lock`` excludes the others."""
        self.w, self.dims, self.lane = words, dims, dims.lane(lane)
        self.lock = nullcontext() if lock is None else lock

    @property
    def generation(self) -> int:
        """Tells the epoch it works for from those that were given up."""
        return self.w[self.lane + W.L_GENERATION]

    def visit(self) -> StreamTurn:
        """What is next. Takes the lock."""
        w, lane = self.w, self.lane
        with self.lock:
            if w[W.STOP]:
                return StreamTurn(Next.STOP, -1, fresh=False)
            fresh = w[lane + W.L_GENERATION] != w[W.GENERATION]
            if fresh:
                w[lane + W.L_GENERATION] = w[W.GENERATION]
            if w[lane + W.L_ENDED] or w[lane + W.L_MADE] >= w[lane + W.L_QUOTA]:
                w[lane + W.L_WAITING] = W.FOR_ROOM
                return StreamTurn(Next.ASLEEP, -1, fresh)
            slot = w[lane + W.LANE + w[lane + W.L_MADE] % W.STREAM_RING]
            w[lane + W.L_SLOT] = E.some(slot)
            return StreamTurn(Next.TICKETS, slot, fresh)

    def ready(self, slot: int, batch: StreamBatch) -> bool:
        """The batch can be had; whether the consumer must be woken. Takes the lock."""
        with self.lock:
            return self._ready(slot, batch)

    def _ready(self, slot: int, batch: StreamBatch) -> bool:
        w, lane, at = self.w, self.lane, self.dims.slot(slot)
        if w[lane + W.L_GENERATION] != w[W.GENERATION]:
            w[lane + W.L_SLOT] = 0
            return False
        w[at + W.S_ITEMS], w[at + W.S_FAILED] = batch.items, int(batch.failed)
        w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES] = batch.offset, batch.size
        w[at + W.S_STATE], w[at + W.S_LAST] = E.some(batch.note), int(batch.last)
        w[at + W.S_STATUS] = W.READY
        w[lane + W.L_MADE] += 1
        w[lane + W.L_SLOT] = 0  # last: until then, whoever ends its claims can tell whether the batch was counted
        return self._answer()

    def end(self, slot: int, note: int) -> bool:
        """The stream is exhausted, which was found out over this slot; whether the consumer must be woken.

        ``note``: as that of a batch. Takes the lock.
        """
        w, lane = self.w, self.lane
        with self.lock:
            w[lane + W.L_SLOT] = 0
            if w[lane + W.L_GENERATION] != w[W.GENERATION]:
                return False
            w[self.dims.slot(slot) + W.S_STATE] = E.some(note)
            w[lane + W.L_ENDED] = 1
            return self._answer()

    def _answer(self) -> bool:
        """The consumer is woken once, by whoever comes first."""
        waiting = self.w[W.AWAITED] != W.NOTHING
        self.w[W.AWAITED] = W.NOTHING
        return waiting


class ConsumerStreams:
    """The consumer's view of all streams."""

    def __init__(self, words: Words, dims: Dims, lanes: int) -> None:
        self.w, self.dims, self.lanes = words, dims, lanes

    def reset(self) -> None:
        """Begin an epoch in every stream."""
        self.w[W.GENERATION] += 1
        self.w[W.AWAITED] = W.NOTHING
        for lane in range(self.lanes):
            at = self.dims.lane(lane)
            self.w[at + W.L_QUOTA], self.w[at + W.L_MADE], self.w[at + W.L_ENDED] = 0, 0, 0

    def allow(self, lane: int, slot: int) -> None:
        """One batch more from this lane, into ``slot``."""
        at = self.dims.lane(lane)
        for word in range(W.SLOT):
            self.w[self.dims.slot(slot) + word] = 0
        self.w[self.dims.slot(slot) + W.S_BATCH] = self.w[W.BATCHES]
        self.w[W.BATCHES] += 1
        self.w[at + W.LANE + self.w[at + W.L_QUOTA] % W.STREAM_RING] = slot
        self.w[at + W.L_QUOTA] += 1

    def allowed(self, lane: int, taken: int) -> list[int]:
        """The slots of a lane's batches that were allowed, after the first ``taken``."""
        at = self.dims.lane(lane)
        return [self.w[at + W.LANE + number % W.STREAM_RING] for number in range(taken, self.w[at + W.L_QUOTA])]

    def expect(self) -> None:
        """Whoever makes a batch or ends wakes the consumer."""
        self.w[W.AWAITED] = W.ANY

    def outcome(self, slot: int) -> StreamBatch:
        """What became of a slot that is ready, or of one whose stream ended over it."""
        w, at = self.w, self.dims.slot(slot)
        note, last = E.which(w[at + W.S_STATE]), bool(w[at + W.S_LAST])
        items, offset, size = w[at + W.S_ITEMS], w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES]
        return StreamBatch(items, offset, size, bool(w[at + W.S_FAILED]), note, last)

    def count_made(self, lane: int, queue: Sequence[int]) -> int:
        """How many of the slots in its ``queue`` a dead lane, whose claims were ended, has made, and counts as made.

        The slots are the facts: it may have died between finishing a batch and counting it.
        """
        at = self.dims.lane(lane)
        ready = sum(self.w[self.dims.slot(slot) + W.S_STATUS] == W.READY for slot in queue)
        self.w[at + W.L_MADE] = self.w[at + W.L_QUOTA] - len(queue) + ready
        return ready

    @property
    def generation(self) -> int:
        """Tells this epoch from those that were given up."""
        return self.w[W.GENERATION]

    def ended(self, lane: int) -> bool:
        """Whether the lane's stream is exhausted."""
        return bool(self.w[self.dims.lane(lane) + W.L_ENDED])
