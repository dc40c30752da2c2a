"""The trainer's use of the ledger of iterable datasets: lanes make batches of their own, as many as it allows.

What a lane does is in ``streamlane``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.ledger_layout import Dims, Words

MOST_AHEAD = W.STREAM_RING
"""Slots that one stream may have ahead."""
DEATHS_ALLOWED = W.DEATHS_ALLOWED
"""Over one batch of a stream."""


class StreamBatch(NamedTuple):
    """The outcome of a lane's turn."""

    items: int
    """Samples in it."""
    offset: int
    size: int
    """The place of the batch in its slot's memory, or of the error in its place."""
    failed: bool
    note: int = -1
    """The offset of the state that the stream can be taken up from after it; -1: nowhere."""
    last: bool = False
    """The stream ended while it was made."""


class TrainerStreams:
    """The trainer's view of all streams. Methods want the lock held."""

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
        """Allow this lane one batch more, into ``slot``."""
        at = self.dims.lane(lane)
        for word in range(W.SLOT):
            self.w[self.dims.slot(slot) + word] = 0
        self.w[self.dims.slot(slot) + W.S_BATCH] = self.w[W.BATCHES]
        self.w[W.BATCHES] += 1
        self.w[at + W.LANE + self.w[at + W.L_QUOTA] % W.STREAM_RING] = slot
        self.w[at + W.L_QUOTA] += 1

    def expect(self) -> None:
        """Have the trainer woken by whoever makes a batch or ends."""
        self.w[W.AWAITED] = W.ANY

    def outcome(self, slot: int) -> StreamBatch:
        """The outcome of a slot that is ready, or of one whose stream ended over it."""
        w, at = self.w, self.dims.slot(slot)
        note, last = E.which(w[at + W.S_STATE]), bool(w[at + W.S_LAST])
        items, offset, size = w[at + W.S_ITEMS], w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES]
        return StreamBatch(items, offset, size, bool(w[at + W.S_FAILED]), note, last)

    def count_made(self, lane: int, queue: Sequence[int]) -> int:
        """The number of slots in its ``queue`` that a dead lane, whose claims were ended, has made; they count as
        made.

        The slots are the facts: it may have died between finishing a batch and counting it.
        """
        at = self.dims.lane(lane)
        ready = sum(self.w[self.dims.slot(slot) + W.S_STATUS] == W.READY for slot in queue)
        self.w[at + W.L_MADE] = self.w[at + W.L_QUOTA] - len(queue) + ready
        return ready

    @property
    def generation(self) -> int:
        """A number that tells this epoch from those that were given up."""
        return self.w[W.GENERATION]

    def is_untouched(self, lane: int) -> bool:
        """True if a lane that died has left nothing unsaid: it had not begun this epoch, or was at its stream's
        end.
        """
        return self.w[self.dims.lane(lane) + W.L_GENERATION] != self.generation or self.ended(lane)

    def ended(self, lane: int) -> bool:
        """True if the lane's stream is exhausted."""
        return bool(self.w[self.dims.lane(lane) + W.L_ENDED])
