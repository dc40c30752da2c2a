"""One epoch over an iterable dataset with workers: every worker's batches, in turn or as they are ready."""

import time
from collections import deque
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.maprun import NOT_YET
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.memory.slots import Slots
from headrace.engine.worker.job import Resume
from headrace.sched import words as W
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.streams import S_ITEMS, S_LAST, S_STATE, ConsumerStreams


class StreamRun:
    """Takes turns over the streams that are not exhausted, as torch does; or takes what is there."""

    def __init__(  # noqa: PLR0913  (it is where everything meets)
        self,
        pool: Pool,
        slots: Slots,
        *,
        in_order: bool,
        ahead: int,
        timeout: float,
        tally: Tally,
        resumed: list[Resume],
        turn: int,
        errors: Errors,
    ) -> None:
        """``ahead``: batches each worker may make before they are taken; ``resumed``: what each stream starts from."""
        self._pool, self._slots, self._in_order = pool, slots, in_order
        self._ahead, self._timeout, self._tally = min(ahead, W.STREAM_RING), timeout, tally
        self._words, self._dims = pool.memory.words, pool.memory.dims
        self._streams = ConsumerStreams(self._words, self._dims, pool.lanes)
        self._ledger = ConsumerLedger(self._words, self._dims)
        self._delivery = Delivery(pool.memory, slots)
        self._queues: list[deque[int]] = [deque() for _ in range(pool.lanes)]
        self._delivered = [resume.batches for resume in resumed]
        self._after = [(resume.state, resume.began, resume.random) for resume in resumed]  # what streams noted last
        self._ended = [resume.ended for resume in resumed]
        self.left: list[bytes | None] = [None] * pool.lanes
        """Where the random generators of workers stand after their streams' ends, if they were drawn from."""
        self._deaths = [(-1, 0)] * pool.lanes  # the batch of its stream a lane last died over, and how often it did
        self._turn = turn % pool.lanes
        self._errors = errors
        self.delivered = Delivered()
        with pool.section():
            self._streams.reset()
        self._allow()

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        for queue in self._queues:
            while queue:
                self._slots.release(queue.popleft())

    def progress(self) -> dict[str, Any]:
        """How far each stream has been delivered, and whose turn it is."""
        streams = [
            {"batches": batches, "ended": ended, "state": state, "began": began, "random": random}
            for batches, ended, (state, began, random) in zip(self._delivered, self._ended, self._after, strict=True)
        ]
        return {"streams": streams, "turn": self._turn}

    def _allow(self) -> None:
        for lane in range(self._pool.lanes):
            while len(self._queues[lane]) < self._ahead and not self._streams.ended(lane):
                with self._pool.section():
                    busy = self._ledger.busy_slots(self._pool.lanes)
                slot = self._slots.acquire(busy, force=not self._queues[lane])
                if slot is None:
                    break
                with self._pool.section():
                    self._streams.allow(lane, slot)
                    self._queues[lane].append(slot)
        with self._pool.section():
            asleep = self._ledger.wake(self._pool.lanes)
        self._pool.ring(asleep)

    def next(self, *, block: bool = True) -> Any:
        """The next batch; raises StopIteration once every stream is exhausted.

        With ``block`` off, ``NOT_YET`` when no batch is ready.
        """
        deadline = time.monotonic() + self._timeout if self._timeout else None
        while True:
            with self._pool.section():
                lane = self._look()
                if lane is None:
                    self._words[W.AWAITED] = W.ANY
            if lane is not None:
                made = self._deliver(lane)
                if made is not None:
                    return made[0]
                continue
            if not any(self._queues):
                raise StopIteration
            if not block:
                return NOT_YET
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                late = self._pool.late()
                msg = f"DataLoader timed out after {self._timeout} seconds" + (f" ({'; '.join(late)})" if late else "")
                raise RuntimeError(msg)
            for dead in self._pool.wait(left):
                self._replace(dead)

    def _look(self) -> int | None:
        """The lane whose batch is next, if it is there. The lock is held."""
        for _ in range(self._pool.lanes):
            lane = self._turn
            queue = self._queues[lane]
            if queue and self._ledger.is_ready(queue[0]):
                self._turn = (lane + 1) % self._pool.lanes
                return lane
            if self._streams.ended(lane):
                note = self._words[self._dims.slot(queue[0]) + S_STATE] if queue else 0
                if note:
                    self.left[lane] = self._delivery.state(queue[0], note - 1)[2]
                while queue:
                    self._slots.release(queue.popleft())
            elif self._in_order:
                return None
            self._turn = (lane + 1) % self._pool.lanes
        return None

    def _deliver(self, lane: int) -> tuple[Any] | None:
        """The lane's next batch in a tuple; None when it failed and failures are skipped."""
        slot = self._queues[lane].popleft()
        at = self._dims.slot(slot)
        items, failed, note, last = (self._words[at + word] for word in (S_ITEMS, W.S_FAILED, S_STATE, S_LAST))
        error = self._delivery.error(slot) if failed else None
        if error is None or not error[2]:
            self._delivered[lane] += 1
            self._ended[lane] = bool(last)
            if note:
                self._after[lane] = self._delivery.state(slot, note - 1)
        if failed:
            self._slots.release(slot)
            self._allow()
            assert error is not None  # streams file every error with its text
            raised, original, fatal = error
            if fatal:
                raise raised
            self._errors.failed(f"item of batch {self._delivered[lane] - 1} of worker {lane}", raised, original)
            return None
        batch = self._words[at + W.S_BATCH]
        made = self._delivery.batch(slot)
        waiting = [slot for queue in self._queues for slot in queue]
        self.delivered = Delivered(batch, items, sum(map(self._ledger.is_ready, waiting)), len(waiting))
        self._tally.samples += items
        self._tally.copied_out += self._delivery.copied
        self._delivery.copied = 0
        self._tally.slab_bytes = max(self._tally.slab_bytes, self._slots.touched)
        self._errors.passed(items)
        self._allow()
        return (made,)

    def _replace(self, lane: int) -> None:
        """A new worker reads its stream again up to what the dead one had made."""
        pid, how = self._pool.epitaph(lane)
        self._tally.restarts += 1
        with self._pool.section():
            self._ledger.bury(lane)
            taken = self._words[self._dims.lane(lane) + W.L_QUOTA] - len(self._queues[lane])
            # The slots are the facts: it may have died between finishing a batch and counting it.
            made = taken + sum(1 for slot in self._queues[lane] if self._ledger.is_ready(slot))
            self._words[self._dims.lane(lane) + W.L_MADE] = made
        ready = list(self._queues[lane])[: made - taken]
        ended, (state, began, random) = self._ended[lane], self._after[lane]
        for slot in ready:
            note, last = (self._words[self._dims.slot(slot) + word] for word in (S_STATE, S_LAST))
            ended = bool(last)
            if note:
                state, began, random = self._delivery.state(slot, note - 1)
        batch = self._delivered[lane] + made - taken
        deaths = self._deaths[lane][1] + 1 if self._deaths[lane][0] == batch else 1
        self._deaths[lane] = batch, deaths
        resume = Resume(batch, state, ended, began, random, generation=self._words[W.GENERATION])
        self._pool.start_one(lane, resume)
        self._pool.ring([lane])
        if deaths > W.DEATHS_ALLOWED:
            msg = (
                f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}, for the "
                f"second time, while it made batch {batch} of the stream of worker {lane}"
            )
            raise WorkerDied(msg)
