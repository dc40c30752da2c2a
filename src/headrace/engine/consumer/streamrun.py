"""One epoch over an iterable dataset with workers: every worker's batches, in turn or as they are ready."""

import time
from collections import deque
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.hand import NOT_YET, Hand, Hands
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.memory.slots import Slots
from headrace.engine.worker.job import Resume
from headrace.sched.streams import DEATHS_ALLOWED, MOST_AHEAD, ConsumerStreams


class Place(NamedTuple):
    """How far the streams were delivered."""

    streams: tuple[Resume, ...]
    turn: int


class StreamRun:
    """Takes turns over the streams that are not exhausted, as torch does; or takes what is there."""

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
        """``ahead``: batches each worker may make before they are taken; ``resumed``: what each stream starts from."""
        self._pool, self._slots, self._in_order = pool, slots, in_order
        self._ahead, self._service, self._tally = min(ahead, MOST_AHEAD), service, service.tally
        self._streams = ConsumerStreams(pool.memory.words, pool.memory.dims, pool.lanes)
        self._ledger = pool.ledger()
        self._delivery = Delivery(pool.memory, slots)
        self._queues: list[deque[int]] = [deque() for _ in range(pool.lanes)]
        self._began = [resume.batches for resume in resumed]
        self._delivered = Place(tuple(resumed), turn % pool.lanes)
        self.hands: Hands[Place] = deque()
        self._torn = False  # something was under way: after an interrupt, the queues are read from the ledger again
        self.left: list[bytes | None] = [None] * pool.lanes
        """Where the random generators of workers stand after their streams' ends, if they were drawn from."""
        self._deaths = [(-1, 0)] * pool.lanes  # the batch of its stream a lane last died over, and how often it did
        with pool.section():
            self._streams.reset()
        self._allow()

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        if self._torn:
            self._pool.section().end()
            self._pool.ring(range(self._pool.lanes))
        for queue in self._queues:
            queue.clear()
        self.hands.clear()
        self._slots.reclaim()

    def progress(self) -> dict[str, Any]:
        """How far each stream has been delivered, and whose turn it is. Right whenever it is asked for."""
        now = self._delivered
        for hand in takewhile(lambda hand: hand.load is None, list(self.hands)):
            now = hand.then
        streams = [
            {"batches": at.batches, "ended": at.ended, "state": at.state, "began": at.began, "random": at.random}
            for at in now.streams
        ]
        return {"streams": streams, "turn": now.turn}

    @property
    def _given(self) -> "Place":
        """Where the streams stood after the last batch that was handed out."""
        return self.hands[-1].then if self.hands else self._delivered

    def _mend(self) -> None:
        """An interrupt broke something off: what each lane was allowed and has not delivered stands in the ledger."""
        self._pool.section().end()
        for lane, at in enumerate(self._given.streams):
            taken = at.batches - self._began[lane]
            with self._pool.section():
                queue = self._streams.allowed(lane, taken)
                ended = self._streams.ended(lane)
            self._queues[lane] = deque(takewhile(self._ledger.is_ready, queue) if ended else queue)
        self._slots.reclaim([slot for queue in self._queues for slot in queue])
        self._allow()
        self._pool.ring(range(self._pool.lanes))  # one of them may count as woken

    def _allow(self) -> None:
        for lane in range(self._pool.lanes):
            while len(self._queues[lane]) < self._ahead and not self._streams.ended(lane):
                slot = self._slots.acquire(self._is_busy, force=not self._queues[lane])
                if slot is None:
                    break
                with self._pool.section():
                    self._streams.allow(lane, slot)
                    self._queues[lane].append(slot)
        self._pool.ring(self._ledger.wake(self._pool.lanes))

    def _is_busy(self, slot: int) -> bool:
        return self._ledger.is_busy(slot, self._pool.lanes)

    def next(self, *, block: bool = True) -> Any:
        """The next batch, or what an item raised, in a hand; raises StopIteration once every stream is exhausted.

        With ``block`` off, ``NOT_YET`` when no batch is ready. After an interrupt, at whatever point of it, the next
        call goes on: see ``hand``.
        """
        while self.hands and self.hands[0].load is None:
            self._delivered = self.hands[0].then
            self.hands.popleft()
        if self._torn:
            self._mend()
        self._torn = True
        made = self._take(block=block)
        self._torn = False
        return made

    def _take(self, *, block: bool) -> Any:
        deadline = time.monotonic() + self._service.timeout if self._service.timeout else None
        turn = self._given.turn
        while True:
            with self._pool.section():
                lane, turn = self._look(turn)
                if lane is None:
                    self._streams.expect()
            if lane is not None:
                hand = self._deliver(lane, turn)
                self.hands.append(hand)
                self._allow()
                if hand.load is not None:
                    return hand
                continue
            if not any(self._queues):
                self._torn = False
                raise StopIteration
            if not block:
                return NOT_YET
            self._sleep(deadline)

    def _sleep(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        self._torn = False
        if left is not None and left <= 0:
            late = self._pool.late()
            msg = f"DataLoader timed out after {self._service.timeout} seconds" + (
                f" ({'; '.join(late)})" if late else ""
            )
            raise RuntimeError(msg)
        dead = self._pool.wait(left)
        self._torn = True
        for lane in dead:
            self._replace(lane)

    def _look(self, turn: int) -> tuple[int | None, int]:
        """The lane whose batch is next, if it is there, and whose turn it is then. The lock is held."""
        for _ in range(self._pool.lanes):
            lane = turn
            queue = self._queues[lane]
            if queue and self._ledger.is_ready(queue[0]):
                return lane, (lane + 1) % self._pool.lanes
            if self._streams.ended(lane):
                note = self._streams.outcome(queue[0]).note if queue else -1
                if note >= 0:
                    self.left[lane] = self._delivery.state(queue[0], note)[2]
                while queue:
                    self._slots.release(queue.popleft())
            elif self._in_order:
                return None, turn
            turn = (lane + 1) % self._pool.lanes
        return None, turn

    def _deliver(self, lane: int, turn: int) -> "Hand[Place]":
        """The lane's next batch, or why there is none; an empty hand where that is only counted."""
        slot, before = self._queues[lane].popleft(), self._given.streams
        own, (items, failed, note, last) = before[lane], self._streams.outcome(slot)
        error = self._delivery.error(slot) if failed else None
        now = own
        if error is None or not error[2]:
            now = replace(own, batches=own.batches + 1, ended=last)
            if note >= 0:
                state, began, random = self._delivery.state(slot, note)
                now = replace(now, state=state, began=began, random=random)
        place = Place((*before[:lane], now, *before[lane + 1 :]), turn)
        if failed:
            self._slots.release(slot)
            assert error is not None  # streams file every error with its text
            raised, original, fatal = error
            judged: BaseException | None = raised
            if not fatal:
                judged = self._service.errors.judged(f"item of batch {own.batches} of worker {lane}", raised, original)
            return Hand(judged, place, Delivered())
        batch = self._ledger.number(slot)
        made = self._delivery.batch(slot)
        waiting = [slot for queue in self._queues for slot in queue]
        delivered = Delivered(batch, items, sum(map(self._ledger.is_ready, waiting)), len(waiting))
        self._tally.samples += items
        self._tally.copied_out += self._delivery.copied
        self._delivery.copied = 0
        self._tally.slab_bytes = max(self._tally.slab_bytes, self._slots.touched)
        self._service.errors.passed(items)
        return Hand((made,), place, delivered)

    def _replace(self, lane: int) -> None:
        """A new worker reads its stream again up to what the dead one had made."""
        pid, how = self._pool.epitaph(lane)
        self._slots.forget(lane)
        self._tally.restarts += 1
        with self._pool.section():
            self._ledger.bury(lane)
            made = self._streams.count_made(lane, self._queues[lane])
        given = self._given.streams[lane]
        now = replace(given, batches=given.batches + made, generation=self._streams.generation)
        for slot in list(self._queues[lane])[:made]:
            _, _, note, last = self._streams.outcome(slot)
            now = replace(now, ended=last)
            if note >= 0:
                state, began, random = self._delivery.state(slot, note)
                now = replace(now, state=state, began=began, random=random)
        batch = now.batches
        deaths = self._deaths[lane][1] + 1 if self._deaths[lane][0] == batch else 1
        self._pool.restart(lane, now)
        self._deaths[lane] = batch, deaths
        self._pool.ring([lane])
        if deaths > DEATHS_ALLOWED:
            msg = (
                f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}, for the "
                f"second time, while it made batch {batch} of the stream of worker {lane}"
            )
            self._torn = False
            raise WorkerDied(msg)
