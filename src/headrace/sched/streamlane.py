"""Which operation of the ledger follows which in a lane that makes a stream of its own: events in, commands out.

``next()`` visits the ledger once at most and says what is to be done outside it, as the machine of other lanes does. A
lane may be killed inside any of these calls and between any two of them.
"""

from dataclasses import dataclass

from headrace.sched.lanemachine import RING, SLEEP, STOP, RingConsumer, Sleep, Stop
from headrace.sched.moves import Next
from headrace.sched.resume import Resume
from headrace.sched.story import LaneStory, LaneTold
from headrace.sched.streams import LaneStream, StreamBatch


@dataclass(frozen=True, slots=True)
class MakeNext:
    """Make the next batch of the stream, for this slot: then ``made``, or ``ended``."""

    slot: int


StreamLaneCommand = RingConsumer | Sleep | Stop | MakeNext
"""What a lane does before it asks again."""


class StreamLaneMachine:
    """One lane's."""

    def __init__(self, ledger: LaneStream, resume: Resume, story: LaneStory | None = None) -> None:
        """``resume``: how far the stream had come that a worker before this one left. ``story``: as of other lanes."""
        self._ledger, self.resume, self._story = ledger, resume, story
        self._slot = -1
        self.begins = True
        """An epoch has begun: so must its stream, with ``start``; then ``began``."""
        self.rings = False
        """The consumer is to be woken, before anything else."""

    def next(self) -> StreamLaneCommand:
        """What is to be done now."""
        if self.rings:
            self.rings = False
            return RING
        what, self._slot, fresh = self._ledger.visit()
        self.begins = self.begins or fresh
        if what == Next.STOP:
            return STOP
        return SLEEP if what == Next.ASLEEP else MakeNext(self._slot)

    @property
    def start(self) -> Resume | None:
        """What the stream is taken up from; None: its beginning. What is said of an epoch holds for no other."""
        return self.resume if self.resume.generation == self._ledger.generation else None

    def began(self) -> None:
        """Its stream is there: whatever comes next begins at the beginning."""
        self.begins, self.resume = False, Resume()

    def made(self, batch: StreamBatch) -> None:
        """The next batch is there, or why it is not."""
        if self._story is not None:
            self._story.tell(LaneTold.MADE_BATCH, 0, 0, self._slot, batch.items)
        self.rings = self._ledger.ready(self._slot, batch)

    def ended(self, note: int) -> None:
        """Nothing comes any more. ``note``: as that of a batch."""
        if self._story is not None:
            self._story.tell(LaneTold.ENDED, 0, 0)
        self.rings = self._ledger.end(self._slot, note)
