"""A lane that makes a stream of its own, batch by batch, as many as the trainer allows: events in, commands out.

``next()`` visits the ledger once at most and says what is to be done outside it, as the machine of other lanes does. A
lane may be killed inside any of these calls and between any two of them: what it has made survives its death, what it
was making is made again.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.streams import StreamBatch
from headrace.sched.lanes.lanemachine import RING, SLEEP, STOP, RingTrainer, Sleep, Stop
from headrace.sched.ledger_layout import Dims, Words
from headrace.sched.ledger_story import LaneStory, LaneTold
from headrace.sched.resume import Resume


@dataclass(frozen=True, slots=True)
class MakeNext:
    """Make the next batch of the stream, for this slot: then ``made``, or ``ended``."""

    slot: int


StreamLaneCommand = RingTrainer | Sleep | Stop | MakeNext
"""A lane's next action, before it asks again."""


class StreamLaneMachine:
    """The machine of one worker's stream. Its methods take the lock."""

    def __init__(
        self,
        words: Words,
        dims: Dims,
        lane: int,
        lock: AbstractContextManager[Any] | None = None,
        *,
        resume: Resume = Resume(),  # noqa: B008  (which is a value)
        story: LaneStory | None = None,
    ) -> None:
        """``words`` is shared. ``lock`` excludes the others.

        ``resume``: how far the stream had come that a worker before this one left. ``story``: as of other lanes.
        """
        self.w, self.dims, self.lane = words, dims, dims.lane(lane)
        self.lock = nullcontext() if lock is None else lock
        self.resume, self._story = resume, story
        self._slot = -1
        self.begins = True
        """An epoch has begun: so must its stream, with ``start``; then ``began``."""
        self.rings = False
        """The trainer is to be woken, before anything else."""

    def next(self) -> StreamLaneCommand:
        """The command to be carried out now."""
        if self.rings:
            self.rings = False
            return RING
        w, lane = self.w, self.lane
        with self.lock:
            if w[W.STOP]:
                return STOP
            if w[lane + W.L_GENERATION] != w[W.GENERATION]:
                w[lane + W.L_GENERATION] = w[W.GENERATION]
                self.begins = True
            if w[lane + W.L_ENDED] or w[lane + W.L_MADE] >= w[lane + W.L_QUOTA]:
                w[lane + W.L_WAITING] = W.FOR_ROOM
                return SLEEP
            self._slot = w[lane + W.LANE + w[lane + W.L_MADE] % W.STREAM_RING]
            # Said before anything is written there: as long as it is, nobody else is given the slot (`is_busy`).
            w[lane + W.L_SLOT] = E.some(self._slot)
            return MakeNext(self._slot)

    @property
    def start(self) -> Resume | None:
        """The point that the stream is taken up from; None: its beginning. What is said of an epoch holds for no
        other.
        """
        return self.resume if self.resume.generation == self.w[self.lane + W.L_GENERATION] else None

    def began(self) -> None:
        """Note that the lane's stream is there: whatever comes next begins at the beginning."""
        self.begins, self.resume = False, Resume()

    def made(self, batch: StreamBatch) -> None:
        """Note that the next batch is there, or why it is not."""
        if self._story is not None:
            self._story.tell(LaneTold.MADE_BATCH, 0, 0, self._slot, batch.items)
        w, lane, at = self.w, self.lane, self.dims.slot(self._slot)
        with self.lock:
            if self._is_void():
                w[lane + W.L_SLOT] = 0
                return
            w[at + W.S_ITEMS], w[at + W.S_FAILED] = batch.items, int(batch.failed)
            w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES] = batch.offset, batch.size
            w[at + W.S_STATE], w[at + W.S_LAST] = E.some(batch.note), int(batch.last)
            w[at + W.S_STATUS] = W.READY
            w[lane + W.L_MADE] += 1
            w[lane + W.L_SLOT] = 0  # last: until then, whoever ends its claims can tell whether the batch was counted
            self._answer()

    def ended(self, note: int) -> None:
        """Note that nothing comes any more, which was found out over the slot. ``note``: as that of a batch."""
        if self._story is not None:
            self._story.tell(LaneTold.ENDED, 0, 0)
        w, lane = self.w, self.lane
        with self.lock:
            w[lane + W.L_SLOT] = 0
            if not self._is_void():
                w[self.dims.slot(self._slot) + W.S_STATE] = E.some(note)
                w[lane + W.L_ENDED] = 1
                self._answer()

    def _is_void(self) -> bool:
        """True if the epoch it works for was given up."""
        return self.w[self.lane + W.L_GENERATION] != self.w[W.GENERATION]

    def _answer(self) -> None:
        """Have the trainer woken once, by whoever comes first."""
        self.rings = self.w[W.AWAITED] != W.NOTHING
        self.w[W.AWAITED] = W.NOTHING
