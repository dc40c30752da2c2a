"""Work of a run on the streams of an iterable dataset: one in each worker."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.memory.slab import Slots
from headrace.engine.processes.worker_pool import Pool
from headrace.engine.trainer.counters import Errors, LoaderCounters
from headrace.engine.trainer.delivery import Delivery
from headrace.sched.epochs.streammachine import (
    Allow,
    CloseStream,
    DeliverMade,
    Made,
    StreamMachine,
    StreamProgress,
    StreamRules,
)
from headrace.sched.epochs.streams import TrainerStreams
from headrace.sched.epochs.trainer_commands import Ring, Wait
from headrace.sched.hand import Delivered, Hand, Hands
from headrace.sched.resume import Note, Resume, SlotContents


class StreamWork:
    """The work of one epoch of streams: every worker's batches, in turn or as they are ready."""

    def __init__(
        self,
        pool: Pool,
        slots: Slots,
        errors: Errors,
        counters: LoaderCounters,
        resumed: list[Resume],
        rules: StreamRules,
        turn: int,
    ) -> None:
        """``resumed``, ``turn``: see ``StreamMachine``."""
        self.pool, self.slots, self.errors, self.counters = pool, slots, errors, counters
        self.ledger = pool.ledger()
        self._delivery = Delivery(pool.memory, slots, counters)
        self.hands: Hands[StreamProgress] = deque()
        streams = TrainerStreams(pool.memory.words, pool.memory.dims, pool.lanes)
        self.machine = StreamMachine(self.ledger, streams, resumed, self.hands, rules, turn)

    def begin(self) -> None:
        self.machine.begin()

    def have_made(self) -> None:
        """Have as many batches made as may be ahead."""
        self.machine.start_ahead()
        while not isinstance(command := self.machine.next(), Wait):
            self.do(command)

    def asked(self) -> None:
        """Count nothing."""

    def patience(self) -> tuple[Sequence[float | None], tuple[int, int]]:
        """No limit: only workers are waited for."""
        return (), (-1, 0)

    def waited(self, seconds: float, since_asked: float) -> None:
        """Do nothing: nothing follows from it."""

    def busy(self) -> list[str]:
        """An empty list: what workers are at is not known of streams."""
        return []

    def ended(self) -> None:
        """Do nothing: nothing is left to do."""

    def abandon(self) -> None:
        """Give up the rest; slots go back, except those a lane still writes to."""
        self.machine.give_up()
        self.slots.reclaim()

    def progress(self) -> dict[str, Any]:
        """The progress of each stream as delivered, and whose turn it is. Right whenever it is asked for."""
        now = self.machine.reached
        return {"streams": [resume.told() for resume in now.streams], "turn": now.turn}

    def do(self, command: object) -> Hand[StreamProgress] | None:
        match command:
            case Ring(lanes=lanes):
                self.pool.ring(lanes)
            case Allow(lane=lane, must=must):
                slot = self.slots.acquire(self._is_busy, force=must)
                if slot is None:
                    self.machine.no_room(lane)
                else:
                    self.machine.allow(lane, slot)
            case CloseStream(made=made):
                note = self._note(made)
                for slot in self.machine.close(made.lane, None if note is None else note.random):
                    self.slots.release(slot)
            case DeliverMade(made=made):
                return self._failed(made) if made.outcome.failed else self._delivered(made)
        return None

    def _is_busy(self, slot: int) -> bool:
        return self.ledger.is_busy(slot, self.pool.lanes)

    def _note(self, made: Made) -> Note | None:
        """The note that the lane left beside the batch; None where there is none."""
        at = made.outcome.note
        return Note(*self._delivery.state(made.slot, at)) if at >= 0 else None

    def _delivered(self, made: Made) -> Hand[StreamProgress]:
        place, items = self.machine.after(made, SlotContents(note=self._note(made))), made.outcome.items
        number = self.ledger.number(made.slot)
        try:
            batch = self._delivery.batch(made.slot)
        except Exception as error:  # noqa: BLE001  (the user's class: the batch is given up)
            return Hand(error, place, Delivered())
        delivered = Delivered(number, items, *self.machine.count_ready())
        self.errors.passed(items)
        return Hand((batch,), place, delivered)

    def _failed(self, made: Made) -> Hand[StreamProgress]:
        """An empty hand where it is only counted."""
        raised, original, fatal = self._error(made.slot)
        place = self.machine.after(made, SlotContents(fatal, self._note(made)))
        number = self.machine.given.streams[made.lane].batches
        self.slots.release(made.slot)
        judged: BaseException | None = raised
        if not fatal:
            judged = self.errors.judged(f"item of batch {number} of worker {made.lane}", raised, original)
        return Hand(judged, place, Delivered())

    def _error(self, slot: int) -> tuple[BaseException, BaseException | None, bool]:
        error = self._delivery.error(slot)
        assert error is not None  # streams file every error with its text
        return error

    def lost(self, lane: int, how: str) -> Resume:
        """The point that a new worker goes on from: a state, or its stream's beginning, from which it passes over
        what was made.

        ``WorkerDied`` where there is no state and nobody said that the stream repeats itself.
        """
        machine = self.machine
        resume = machine.successor(lane, [(made, self._reading(made)) for made in machine.left_by(lane)])
        if resume is None:
            msg = (
                f"{how}. What it had read of its stream cannot be had again: give the dataset or its iterator "
                "state_dict and load_state_dict, or say loading=headrace.Loading(repeats=True) if it gives the same "
                "items in the same order each time"
            )
            raise WorkerDied(msg)
        return resume

    def _reading(self, made: Made) -> SlotContents:
        return SlotContents(made.outcome.failed and self._error(made.slot)[2], self._note(made))

    def blamed(self, lane: int, how: str, resume: Resume) -> str | None:
        """A batch that takes two workers with it is not tried again."""
        if not self.machine.blame(lane, resume.batches):
            return None
        return f"{how}, for the second time, while it made batch {resume.batches} of the stream of worker {lane}"
