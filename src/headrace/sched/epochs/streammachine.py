"""The order in which operations of the ledger follow each other in the trainer of one epoch of streams: events in,
commands out.

``next()`` visits the ledger once at most and says what is to be done outside it, as an epoch's machine does. Streams
cannot be begun again: how far each was taken stands in ``delivered`` and in the hands.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice, takewhile
from typing import NamedTuple

from headrace.sched.epochs.repair import end_claims
from headrace.sched.epochs.streams import DEATHS_ALLOWED, MOST_AHEAD, StreamBatch, TrainerStreams
from headrace.sched.epochs.trainer_commands import END, GO_ON, WAIT, End, GoOn, Ring, Wait
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.hand import Hand
from headrace.sched.resume import Resume, SlotContents


class StreamProgress(NamedTuple):
    """The progress of the streams as delivered."""

    streams: tuple[Resume, ...]
    turn: int
    """The lane whose batch is next, unless that stream has ended."""


class Made(NamedTuple):
    """A slot that a lane is done with."""

    lane: int
    slot: int
    outcome: StreamBatch


class StreamRules(NamedTuple):
    """Rules that hold for all streams of an epoch."""

    in_order: bool
    ahead: int
    """Batches each lane may make before they are taken."""
    stateful: bool = False
    """The dataset has a state before any batch, too."""
    repeats: bool = False
    """A stream may be passed over again, in place of one whose worker died."""


@dataclass(frozen=True, slots=True)
class Allow:
    """Find a free slot for a batch of this lane, past the limit if it ``must``: ``allow``, or ``no_room``."""

    lane: int
    must: bool


@dataclass(frozen=True, slots=True)
class CloseStream:
    """A stream ended: read the note in ``made``, if there is one, and ``close`` it."""

    made: Made


@dataclass(frozen=True, slots=True)
class DeliverMade:
    """Put it into a hand, with where streams stand ``after`` it."""

    made: Made


StreamCommand = GoOn | Allow | Ring | CloseStream | DeliverMade | Wait | End
"""The trainer's next action, before it asks again."""


class _StreamStep(IntEnum):
    """Steps of the machine: the next thing to be looked at."""

    ALLOW = 0
    ALLOWED = 1
    LOOK = 2


class StreamMachine:
    """Takes turns over the streams that are not exhausted, as torch does; or takes what is there."""

    refills = True
    """A batch that was delivered makes room for another at once."""

    def __init__(
        self,
        ledger: TrainerLedger,
        streams: TrainerStreams,
        resumed: Sequence[Resume],
        hands: Sequence[Hand[StreamProgress]],
        rules: StreamRules,
        turn: int,
    ) -> None:
        """``resumed``: what each stream starts from. ``hands``: what was handed out and is not settled, oldest first.

        ``turn``: the stream whose batch comes first.
        """
        self._ledger, self._streams, self._hands, self._rules = ledger, streams, hands, rules
        self._ahead = min(rules.ahead, MOST_AHEAD)
        lanes = streams.lanes
        self.delivered = StreamProgress(tuple(resumed), turn % lanes)
        """Up to what was settled."""
        self.left: list[bytes | None] = [None] * lanes
        """The states of workers' random generators after their streams' ends, if they were drawn from."""
        self.queues: list[deque[int]] = [deque() for _ in range(lanes)]
        """The slots of each lane's batches to come, in order."""
        self._lane = 0  # the next one to look at, for whether it may have batches made
        self._at = _StreamStep.LOOK
        self._deaths = [(-1, 0)] * lanes  # the batch of its stream a lane last died over, and how often it did

    @property
    def reached(self) -> StreamProgress:
        """The progress of the streams as the user has them. Right whenever it is asked for."""
        now = self.delivered
        for hand in takewhile(lambda hand: hand.load is None, list(self._hands)):
            now = hand.then
        return now

    @property
    def given(self) -> StreamProgress:
        """The progress of the streams after the last batch that was handed out."""
        return self._hands[-1].then if self._hands else self.delivered

    def begin(self) -> None:
        """Begin the epoch in the ledger; whatever was there is given up."""
        with self._ledger.lock:
            self._streams.reset()

    def start(self) -> None:
        """The next batch is asked for."""
        self._at = _StreamStep.LOOK

    def start_ahead(self) -> None:
        """Have batches made only, as many as may be ahead; ``WAIT`` when that was done."""
        self._at, self._lane = _StreamStep.ALLOW, 0

    def next(self) -> StreamCommand:
        """The command to be carried out now."""
        if self._at == _StreamStep.LOOK:
            return self._look()
        if self._at == _StreamStep.ALLOW:
            return self._room()
        return WAIT

    def allow(self, lane: int, slot: int) -> None:
        """Allow this lane one batch more, into this slot."""
        with self._ledger.lock:
            self._streams.allow(lane, slot)
            self.queues[lane].append(slot)

    def no_room(self, lane: int) -> None:
        """Note that no slot is free for it."""
        self._lane = lane + 1

    def after(self, made: Made, read: SlotContents) -> StreamProgress:
        """The progress of the streams once this was delivered, after all that was handed out before."""
        given, lane = self.given, made.lane
        resume = given.streams[lane].after(read, last=made.outcome.last)
        streams = (*given.streams[:lane], resume, *given.streams[lane + 1 :])
        return StreamProgress(streams, (lane + 1) % self._streams.lanes)

    def settle(self, place: StreamProgress) -> None:
        """The user has what was delivered up to there."""
        self.delivered = place

    def close(self, lane: int, left: bytes | None) -> list[int]:
        """A stream is over; slots that it was allowed for nothing. ``left``: see there."""
        self.left[lane] = left
        dropped, self.queues[lane] = list(self.queues[lane]), deque()
        return dropped

    def give_up(self) -> None:
        """Forget the batches to come: what lanes do is void."""
        for queue in self.queues:
            queue.clear()

    def count_ready(self) -> tuple[int, int]:
        """The number of batches to come that could be had now, and the number of all batches to come."""
        waiting = [slot for queue in self.queues for slot in queue]
        return sum(map(self._ledger.is_ready, waiting)), len(waiting)

    def left_by(self, lane: int) -> list[Made]:
        """A lane died: what it had made and nobody took."""
        queue = self.queues[lane]
        with self._ledger.lock:
            end_claims(self._ledger, lane)
            count = self._streams.count_made(lane, queue)
        return [Made(lane, slot, self._streams.outcome(slot)) for slot in islice(queue, count)]

    def successor(self, lane: int, made: Sequence[tuple[Made, SlotContents]]) -> Resume | None:
        """The point that a new worker goes on from in the place of one that died and had ``made`` these. None:
        there is nothing, for what the dead one had read cannot be had again.
        """
        streams, rules = self.given.streams, self._rules
        resume = streams[lane]
        for each, read in made:
            resume = resume.after(read, last=each.outcome.last)
        has_state = resume.state is not None
        if not resume.batches:  # what other streams have had, this one would have had too
            has_state = rules.stateful or any(stream.state is not None for stream in streams)
        if not (has_state or rules.repeats or resume.ended or self._streams.is_untouched(lane)):
            return None
        return replace(resume, generation=self._streams.generation)

    def blame(self, lane: int, batch: int) -> bool:
        """A lane died over a batch of its stream, and was replaced; whether it did so more often than it may."""
        last, deaths = self._deaths[lane]
        self._deaths[lane] = batch, deaths + 1 if last == batch else 1
        return self._deaths[lane][1] > DEATHS_ALLOWED

    def _room(self) -> StreamCommand:
        """Allow each stream as many batches as may be ahead."""
        for lane in range(self._lane, self._streams.lanes):
            if len(self.queues[lane]) < self._ahead and not self._streams.ended(lane):
                self._lane = lane
                return Allow(lane, must=not self.queues[lane])
        self._at = _StreamStep.ALLOWED
        woken = self._ledger.wake(self._streams.lanes)
        return Ring(woken) if woken else GO_ON

    def _look(self) -> StreamCommand:
        """Look for a batch that can be delivered; lanes know that they are waited for if none can."""
        turn, lanes = self.given.turn, self._streams.lanes
        with self._ledger.lock:
            for lane in (*range(turn, lanes), *range(turn)):
                queue = self.queues[lane]
                if queue and self._ledger.is_ready(queue[0]):
                    slot = queue.popleft()
                    return DeliverMade(Made(lane, slot, self._streams.outcome(slot)))
                if self._streams.ended(lane):
                    if queue:  # the first of them is where it ended
                        return CloseStream(Made(lane, queue[0], self._streams.outcome(queue[0])))
                elif self._rules.in_order:
                    break
            self._streams.expect()
        return WAIT if any(self.queues) else END
