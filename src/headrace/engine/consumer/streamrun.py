"""One epoch over an iterable dataset with workers: what the machine of its streams says is done here."""

import time
from collections import deque
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.hand import NOT_YET, Hand, Hands, NotYet
from headrace.engine.consumer.processes.pool import Pool
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.memory.slots import Slots
from headrace.sched.acts import End, Ring, Wait
from headrace.sched.resume import Note, Resume, SlotContents
from headrace.sched.streammachine import Allow, CloseStream, DeliverMade, Made, StreamMachine, StreamProgress
from headrace.sched.streams import ConsumerStreams


class StreamRun:
    """Delivers every worker's batches, in turn or as they are ready. The pool outlives the run; the slots do too."""

    def __init__(
        self,
        pool: Pool,
        slots: Slots,
        resumed: list[Resume],
        service: Service,
        *,
        in_order: bool,
        ahead: int,
        turn: int,
    ) -> None:
        """Has batches made at once. ``resumed``, ``ahead``, ``turn``: see ``StreamMachine``."""
        self._pool, self._slots, self._service, self._tally = pool, slots, service, service.tally
        self._ledger = pool.ledger()
        self._delivery = Delivery(pool.memory, slots)
        self.hands: Hands[StreamProgress] = deque()
        streams = ConsumerStreams(pool.memory.words, pool.memory.dims, pool.lanes)
        self.machine = StreamMachine(
            self._ledger, streams, resumed, self.hands, in_order=in_order, ahead=ahead, turn=turn
        )
        """What comes next, and what was delivered."""
        self._torn = False  # something was under way: after an interrupt, the queues are read from the ledger again
        self.machine.begin()
        self._allow()

    @property
    def left(self) -> list[bytes | None]:
        """Where the random generators of workers stand after their streams' ends, if they were drawn from."""
        return self.machine.left

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        if self._torn:
            self._pool.section().end()
            self._pool.ring(range(self._pool.lanes))
        self.machine.give_up()
        self.hands.clear()
        self._slots.reclaim()

    def progress(self) -> dict[str, Any]:
        """How far each stream has been delivered, and whose turn it is. Right whenever it is asked for."""
        now = self.machine.reached
        streams = [
            {"batches": at.batches, "ended": at.ended, "state": at.state, "began": at.began, "random": at.random}
            for at in now.streams
        ]
        return {"streams": streams, "turn": now.turn}

    def next(self, *, block: bool = True) -> Hand[StreamProgress] | NotYet:
        """The next batch, or what an item raised, in a hand; raises StopIteration once every stream is exhausted.

        With ``block`` off, ``NOT_YET`` when no batch is ready. After an interrupt, at whatever point of it, the next
        call goes on: see ``hand``.
        """
        while self.hands and self.hands[0].load is None:
            self.machine.settle(self.hands[0].then)
            self.hands.popleft()
        if self._torn:
            self._mend()
        self._torn = True
        made = self._take(block=block)
        self._torn = False
        return made

    def _mend(self) -> None:
        """An interrupt broke something off."""
        self._pool.section().end()
        self._slots.reclaim(self.machine.mend())
        self._allow()
        self._pool.ring(range(self._pool.lanes))  # one of them may count as woken

    def _allow(self) -> None:
        """Have batches made, as many as may be ahead."""
        machine = self.machine
        machine.start_ahead()
        while not isinstance(command := machine.next(), Wait):
            if isinstance(command, Allow):
                slot = self._slots.acquire(self._is_busy, force=command.must)
                if slot is None:
                    machine.no_room(command.lane)
                else:
                    machine.allow(command.lane, slot)
            elif isinstance(command, Ring):
                self._pool.ring(command.lanes)

    def _is_busy(self, slot: int) -> bool:
        return self._ledger.is_busy(slot, self._pool.lanes)

    def _take(self, *, block: bool) -> Hand[StreamProgress] | NotYet:
        machine = self.machine
        deadline = time.monotonic() + self._service.timeout if self._service.timeout else None
        machine.start()
        while not isinstance(command := machine.next(), End):
            match command:
                case Wait():
                    if not block:
                        return NOT_YET
                    self._sleep(deadline)
                case CloseStream(made=made):
                    self._close(made)
                case DeliverMade(made=made):
                    hand = self._deliver(made)
                    self.hands.append(hand)
                    self._allow()
                    if hand.load is not None:
                        return hand
                    machine.start()
        self._torn = False
        raise StopIteration

    def _sleep(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        self._torn = False
        if left is not None and left <= 0:
            late = self._pool.late()
            msg = f"DataLoader timed out after {self._service.timeout} seconds" + (
                f" ({'; '.join(late)})" if late else ""
            )
            msg += self._pool.told()
            raise RuntimeError(msg)
        dead = self._pool.wait(left)
        self._torn = True
        for lane in dead:
            self._replace(lane)

    def _close(self, ended: Made) -> None:
        note = self._note(ended)
        for slot in self.machine.close(ended.lane, None if note is None else note.random):
            self._slots.release(slot)

    def _note(self, made: Made) -> Note | None:
        """What the lane left beside it."""
        at = made.outcome.note
        return Note(*self._delivery.state(made.slot, at)) if at >= 0 else None

    def _deliver(self, made: Made) -> Hand[StreamProgress]:
        """A batch, or why there is none; an empty hand where that is only counted."""
        if made.outcome.failed:
            return self._failed(made)
        place, slot, items = (
            self.machine.after(made, SlotContents(note=self._note(made))),
            made.slot,
            made.outcome.items,
        )
        number = self._ledger.number(slot)
        batch = self._delivery.batch(slot)
        delivered = Delivered(number, items, *self.machine.count_ready())
        self._tally.samples += items
        self._tally.copied_out += self._delivery.copied
        self._delivery.copied = 0
        self._tally.slab_bytes = max(self._tally.slab_bytes, self._slots.touched)
        self._service.errors.passed(items)
        return Hand((batch,), place, delivered)

    def _failed(self, made: Made) -> Hand[StreamProgress]:
        raised, original, fatal = self._error(made.slot)
        place = self.machine.after(made, SlotContents(fatal, self._note(made)))
        number = self.machine.given.streams[made.lane].batches
        self._slots.release(made.slot)
        judged: BaseException | None = raised
        if not fatal:
            judged = self._service.errors.judged(f"item of batch {number} of worker {made.lane}", raised, original)
        return Hand(judged, place, Delivered())

    def _error(self, slot: int) -> tuple[BaseException, BaseException | None, bool]:
        error = self._delivery.error(slot)
        assert error is not None  # streams file every error with its text
        return error

    def _replace(self, lane: int) -> None:
        """A new worker reads its stream again up to what the dead one had made."""
        machine = self.machine
        pid, how = self._pool.epitaph(lane)
        self._slots.forget(lane)
        self._tally.restarts += 1
        resume = machine.heir(lane, [(made, self._reading(made)) for made in machine.bury(lane)])
        self._pool.restart(lane, resume)
        again = machine.blame(lane, resume.batches)
        self._pool.ring([lane])
        if again:
            msg = (
                f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}, for the "
                f"second time, while it made batch {resume.batches} of the stream of worker {lane}"
            )
            self._torn = False
            raise WorkerDied(msg)

    def _reading(self, made: Made) -> SlotContents:
        return SlotContents(made.outcome.failed and self._error(made.slot)[2], self._note(made))
