"""One epoch over a map-style dataset with workers: draw, publish, wait, deliver."""

import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import takewhile
from typing import Any

from headrace.core.errors import BatchNotSendable, WorkerDied
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.book import Book, Group, Numbers
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.order import Groups
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.stragglers import Stragglers
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.consumer.watch import Watch
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.engine.worker.job import Resume
from headrace.sched import words as W
from headrace.sched.consumer import ConsumerLedger


class _NotYet(Enum):
    NOT_YET = 0


NOT_YET = _NotYet.NOT_YET


class Arrangement(Enum):
    """How samples become batches, and in which order batches come."""

    STRICT = "as drawn, in the order drawn"
    BATCHES = "as drawn, as they are ready"
    FREE = "the first to finish, as they are ready"


class MapRun:
    """Delivers each index of the epoch exactly once. The pool outlives the run; the slots do too.

    A run may follow another one: then it draws when that one lets it, and delivers once it was told to ``begin``.
    """

    def __init__(  # noqa: PLR0913  (it is where everything meets)
        self,
        pool: Pool,
        slots: Slots,
        groups: Groups,
        *,
        arrangement: Arrangement,
        window: int,
        collate: bool,
        drop_last: bool,
        timeout: float,
        errors: Errors,
        tally: Tally,
        seed: tuple[int, int],
        spares: Callable[[int], int],
        displacement: int,
        automatic: Automatic | None,
        stragglers: Stragglers | None = None,
        follower: "Callable[[MapRun], MapRun | None] | None" = None,
        after: "MapRun | None" = None,
    ) -> None:
        """``window``: batches per lane drawn and not delivered, at most. ``collate``: a worker must collate each batch.

        ``spares``: processes that may stand in for those busy with slow samples, from the number of lanes.
        ``displacement``: batches by which a sample may be overtaken in free order, 0 for any number.
        ``automatic``: decides how many lanes work; None leaves it at the pool's.
        ``stragglers``: samples to begin as soon as they are drawn; None where a batch is made by one lane.
        ``follower``: makes the run of the next epoch, for lanes that find nothing left in this one; None: they wait.
        ``after``: the run that this one follows.
        """
        self._pool, self._slots, self._groups, self._arrangement = pool, slots, groups, arrangement
        self._window, self._collate, self._drop_last, self._timeout = window, collate, drop_last, timeout
        self._errors, self._tally = errors, tally
        self._memory, self._words, self._dims = pool.memory, pool.memory.words, pool.memory.dims
        self._ledger = ConsumerLedger(self._words, self._dims)
        self._book = Book(pool.memory, Numbers() if after is None else after.numbers)
        self._spares, self._automatic, self._stragglers = spares, automatic, stragglers
        self._follower, self._after = follower, after
        self._next: MapRun | None = None
        self._delivery = Delivery(pool.memory, slots)
        self._open: deque[int] = deque()  # slots not delivered: in the order of their batches, or of their filling
        self._owner: dict[int, Group] = {}  # slot -> its group, where batches are as drawn
        self._undelivered = 0
        self._lost = 0
        self._size = 1
        self._drawn: list[Any] | None = None  # drawn, but there was no slot for it yet
        self._exhausted = False
        self.is_done = False  # everything was delivered
        self._seen_failures = self._examined = 0
        self._idle_deaths = 0
        self.delivered, self._ready = Delivered(), 0
        self._words[W.SEED], epoch = seed
        if after is not None:
            with pool.section():
                self._ledger.follow(epoch)
            return
        with pool.section():
            limit = pool.workers if automatic is None else automatic.lanes
            free = arrangement is Arrangement.FREE
            self._ledger.reset(free_order=free, limit=limit, displacement=displacement, epoch=epoch)
        self._begin()

    @property
    def may_begin(self) -> bool:
        """Whether the run before delivered everything; otherwise this one is void."""
        return self._after is not None and self._after.is_done

    def begin(self) -> None:
        """Take over from the run before."""
        self._after = None
        with self._pool.section():
            self._ledger.advance(self._book.groups)
        self._begin()

    def _begin(self) -> None:
        self._tally.lane_changes.note(self._words[W.LIMIT])
        self._watch = Watch(self._pool, self._ledger, self._tally, self._spares, self._automatic)
        self._draw()

    @property
    def numbers(self) -> Numbers:
        """Those that its groups have in the ledger."""
        return self._book.numbers

    def _draw(self, *, one_more: bool = False) -> None:
        """Keep ``window`` batches outstanding, or draw ``one_more``; samples that failed leave room for others."""
        room = self._window * self._words[W.LIMIT]
        while not self._exhausted:
            if self._undelivered >= room + self._lost // max(1, self._size) and not one_more:
                return
            if not self._draw_one(force=self._undelivered == 0 or one_more):
                return
            one_more = False
        if self._follower is not None and self._undelivered < room and not self._words[W.LOCAL]:
            self._next = self._next or self._follower(self)
            if self._next is not None:
                self._next.draw_early(room - self._undelivered)
            else:
                self._follower = None

    def draw_early(self, room: int) -> None:
        """Have ``room`` batches of this epoch made while the one before it is delivered."""
        while not self._exhausted and self._undelivered < room and self._draw_one(force=False):
            pass

    def _draw_one(self, *, force: bool) -> bool:
        """Publish the next batch of the order, if there is one; False when there is no slot for it now."""
        if self._drawn is None:
            self._drawn = self._groups.next()
        if self._drawn is None:
            self._exhausted = True
            return True
        if not self._publish(self._drawn, force=force):
            return False
        self._drawn = None
        return True

    def _publish(self, indices: list[Any], *, force: bool) -> bool:
        """Hand a batch out; False when there is no slot for it now."""
        free = self._arrangement is Arrangement.FREE
        ledger, lanes = self._ledger, self._pool.lanes
        with self._pool.section():
            slot = self._slots.acquire(ledger.busy_slots(lanes), force=force)
            if slot is None:
                return False
            try:
                group, kind, blob = self._book.write(indices, -1 if free else slot)
            except BaseException:
                self._slots.release(slot)
                raise
            self._size = len(indices)
            ledger.open(slot, len(indices), collate=self._collate)
            if not indices:
                ledger.publish_empty(slot, group.number)
            else:
                ledger.publish(group.number, len(indices), kind, blob, group.slot, self._ahead(indices))
            if free:
                ledger.offer(slot)
            else:
                self._owner[slot] = group
            self._open.append(slot)
            self._undelivered += 1
            asleep = ledger.wake(lanes)
        self._pool.ring(asleep)
        return True

    def _ahead(self, indices: list[Any]) -> list[int]:
        """Positions of samples known to be extraordinarily slow. The lock is held."""
        if self._stragglers is None or self._words[W.LOCAL]:
            return []
        self._stragglers.learn(self._ledger)
        return self._stragglers.among(indices, self._ledger)

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here in another process."""
        drawn = [list(self._drawn)] if self._drawn else []
        pending = self._book.owed() + drawn + self._groups.waiting()
        return {"pending": pending, "order": self._groups.order_state()}

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        self._after = None
        while self._open:
            self._slots.release(self._open.pop())

    def next(self, *, block: bool = True) -> Any:
        """The next batch; raises StopIteration at the end, and whatever a sample raised.

        With ``block`` off, ``NOT_YET`` when no batch is ready.
        """
        deadline = time.monotonic() + self._timeout if self._timeout else None
        if self._open:
            self._ready = self._count_ready()
            self._tally.ready += self._ready / len(self._open)
            self._tally.asked += 1
        while True:
            self._draw()
            if self._samples_cannot_travel():
                self._stay_local()
                continue
            self._watch.look(draining=self._exhausted and self._next is None)
            self._raise_failures()
            if not self._open and self._exhausted:
                self._watch.count()
                self.is_done = True
                raise StopIteration
            slot = self._look()
            if self._samples_cannot_travel():
                self._open.extend([] if slot is None else [slot])
                self._stay_local()
            elif slot is not None:
                made = self._deliver(slot)
                if made is not None:
                    self._watch.delivered(self.delivered.ready / max(1, self._window * self._words[W.LIMIT]))
                    self._idle_deaths = 0
                    return made[0]
            elif self._starved():
                self._draw(one_more=True)
            elif self._open and not block:
                return NOT_YET
            elif self._open:
                self._sleep(deadline)

    def _count_ready(self) -> int:
        """Batches that could be delivered one after the other, now."""
        if self._arrangement is Arrangement.BATCHES:
            return sum(map(self._ledger.is_ready, self._open))
        return sum(1 for _ in takewhile(self._ledger.is_ready, self._open))

    def _samples_cannot_travel(self) -> bool:
        """Whether a sample failed only because it cannot be sent to the worker that collates."""
        failures = self._words[W.FAILURES]
        if failures == self._examined or self._words[W.LOCAL]:
            return False
        self._examined = failures
        with self._pool.section():
            failed = self._ledger.failed(list(self._book.groups))
        errors = [self._read(self._book.groups[number], blob) for number, _, blob in failed]
        return any(error is not None and isinstance(error[0], BatchNotSendable) for error in errors)

    def _stay_local(self) -> None:
        """Begin what is owed again, each batch on one worker: what cannot be sent may still be collated where it is."""
        pending = self.progress()["pending"]
        with self._pool.section():
            self._ledger.reset(free_order=False, limit=self._words[W.LIMIT], epoch=self._ledger.epoch)
            self._words[W.LOCAL] = 1
        self.abandon()
        if self._next is not None:
            self._next.abandon()
        if self._arrangement is Arrangement.FREE:
            self._arrangement = Arrangement.BATCHES
        self._groups, self._book, self._drawn = self._groups.again(pending), Book(self._memory, Numbers()), None
        self._owner.clear()
        self._undelivered = self._lost = self._seen_failures = self._examined = 0
        self._exhausted = False

    def _starved(self) -> bool:
        """Free order: so many samples failed that the next batch cannot be filled from what is drawn."""
        if self._arrangement is not Arrangement.FREE or self._exhausted or self._words[W.UNRESOLVED]:
            return False
        return not self._open or self._words[self._dims.slot(self._open[0]) + W.S_STATUS] == W.FILLING

    def _look(self) -> int | None:
        """A slot to deliver; None after arranging to be woken."""
        if self._arrangement is not Arrangement.BATCHES and self._open and self._ledger.is_ready(self._open[0]):
            return self._open.popleft()  # it stays ready: nobody has to be kept out to see it
        with self._pool.section():
            if self._arrangement is Arrangement.FREE and self._exhausted and self._words[W.UNRESOLVED] == 0:
                self._close_tail()
            # In free order batches come as they were filled: the next one is never behind the others for long.
            candidates = list(self._open) if self._arrangement is Arrangement.BATCHES else list(self._open)[:1]
            for slot in candidates:
                if self._ledger.is_ready(slot):
                    self._open.remove(slot)
                    return slot
            self._words[W.AWAITED] = candidates[0] + 1 if len(candidates) == 1 else W.ANY
            if self._exhausted:  # no batch will be published any more that would wake those who wait for a row
                self._pool.ring(self._ledger.wake(self._pool.lanes))
        return None

    def _close_tail(self) -> None:
        """Samples were left out, so the last batches stay short of rows. The lock is held."""
        for slot in list(self._open):
            filling = self._words[self._dims.slot(slot) + W.S_STATUS] == W.FILLING
            if filling and (self._drop_last or not self._ledger.close(slot)):
                self._open.remove(slot)
                self._give_up(slot)
        self._pool.ring(self._ledger.wake(self._pool.lanes))

    def _give_up(self, slot: int) -> None:
        for row in self._present(slot):
            self._book.settle(self._words[self._dims.row_ticket(slot) + row] - 1)
        self._slots.release(slot)
        self._undelivered -= 1

    def _present(self, slot: int) -> list[int]:
        """Rows that hold a sample."""
        first, at = self._dims.row_state(slot), self._dims.slot(slot)
        expected = self._words[at + W.S_EXPECTED]
        if self._words[at + W.S_DONE] == expected and not self._words[W.FAILURES]:
            return list(range(expected))
        states = self._words[first : first + expected].tolist()
        return [row for row, state in enumerate(states) if state & 255 in (W.IN_PLACE, W.AS_OBJECT)]

    def _deliver(self, slot: int) -> tuple[Any] | None:
        """The slot's batch in a tuple; None when nothing of it is left."""
        self._undelivered -= 1
        try:
            self._file_failures(slot)
            if self._words[self._dims.slot(slot) + W.S_FAILED]:
                error = self._delivery.error(slot)
                raise WorkerDied(_COLLATE_DIED) if error is None else error[0]
        except BaseException:
            self._settle(slot, self._present(slot))
            self._slots.release(slot)
            raise
        rows = self._present(slot)
        self._settle(slot, rows)
        expected = self._words[self._dims.slot(slot) + W.S_EXPECTED]
        if not rows and expected:
            self._slots.release(slot)
            return None
        missing, batch = len(rows) < expected, self._words[self._dims.slot(slot) + W.S_BATCH]
        made = self._delivery.batch(slot, keep=rows if missing else None)
        self.delivered = Delivered(batch, len(rows), max(0, self._ready - 1), len(self._open))
        self._errors.passed(len(rows))
        self._tally.samples += len(rows)
        self._tally.copied_out += self._delivery.copied
        self._delivery.copied = 0
        self._tally.slab_bytes = max(self._tally.slab_bytes, self._slots.touched)
        return (made,)

    def _settle(self, slot: int, rows: list[int]) -> None:
        if slot in self._owner:
            self._book.retire(self._owner.pop(slot))
            return
        first = self._dims.row_ticket(slot)
        tickets = self._words[first : first + self._words[self._dims.slot(slot) + W.S_EXPECTED]].tolist()
        for row in rows:
            self._book.settle(tickets[row] - 1)

    def _file_failures(self, slot: int) -> None:
        """Batches as drawn: failures come out with the batch they belong to."""
        if slot in self._owner and self._words[W.FAILURES]:
            group = self._owner[slot]
            with self._pool.section():
                failed = self._ledger.failed([group.number])
            for _, position, blob in failed:
                self._file(group, position, blob)

    def _raise_failures(self) -> None:
        """Free order: failures come out as soon as they are seen."""
        if self._arrangement is not Arrangement.FREE or self._words[W.FAILURES] == self._seen_failures:
            return
        with self._pool.section():
            failed = self._ledger.failed(list(self._book.groups))
        for number, position, blob in failed:
            group = self._book.groups.get(number)
            if group is not None and position in group.owed:
                self._seen_failures += 1
                self._lost += 1
                error = self._read(group, blob)
                self._book.settle(number << 32 | position)
                self._file(group, position, blob, error)

    def _read(self, group: Group, blob: int) -> tuple[BaseException, BaseException | None, bool] | None:
        if blob == W.NO_BLOB:
            return None
        at = self._memory.blob(group.number) + blob
        size = int.from_bytes(self._memory.bytes[at : at + 8], "little")
        return failure.unpack(bytes(self._memory.bytes[at + 8 : at + 8 + size]))

    def _file(self, group: Group, position: int, blob: int, known: Any = None) -> None:
        """Raise or count one failed sample."""
        error = known or self._read(group, blob)
        index = group.indices[position]
        if error is None:
            died = WorkerDied(f"{self._last_epitaph}. It was making sample {index!r}, for the second time")
            self._errors.failed(index, died, died)
            return
        raised, original, fatal = error
        if fatal:
            raise raised
        raised.add_note(f"headrace: sample {index!r}")
        self._errors.failed(index, raised, original)

    _last_epitaph = "DataLoader worker exited unexpectedly"

    def _sleep(self, deadline: float | None) -> None:
        """Until something happens; the dead are replaced and their work is queued again."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            msg = f"DataLoader timed out after {self._timeout} seconds{self._busy_with()}"
            raise RuntimeError(msg)
        due = self._watch.due()
        began = time.monotonic()
        dead = self._pool.wait(due if left is None else left if due is None else min(left, due))
        self._watch.waited(time.monotonic() - began)
        for lane in dead:
            self._replace(lane)

    def holdings(self) -> tuple[list[int], list[int]]:
        """Its groups and slots in the ledger."""
        return list(self._book.groups), list(self._open)

    def _busy_with(self) -> str:
        """What the workers are at, for a message."""
        busy = self._pool.late()
        for lane in range(self._pool.lanes):
            at = self._dims.lane(lane)
            group = self._book.groups.get(self._words[at + W.L_GROUP] - 1)
            position = self._words[at + W.L_POS]
            if group is not None and position < len(group.indices):
                busy.append(f"worker {lane} makes sample {group.indices[position]!r}")
        return f" ({'; '.join(busy)})" if busy else ""

    def _replace(self, lane: int) -> None:
        pid, how = self._pool.epitaph(lane)
        self._last_epitaph = (
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}"
        )
        groups, slots = self.holdings()
        if self._next is not None:
            early = self._next.holdings()
            groups, slots = groups + early[0], slots + early[1]
        with self._pool.section():
            repair = self._ledger.repair(lane, self._pool.lanes, groups, slots)
        self._tally.restarts += 1
        self._tally.repeats += repair.reissued
        self._pool.start_one(lane, Resume())
        with self._pool.section():
            asleep = self._ledger.wake(self._pool.lanes)
        self._pool.ring(asleep)
        if repair.ticket is None and repair.collating < 0:
            self._idle_deaths += 1
            if self._idle_deaths > self._pool.lanes + 1:
                msg = f"{self._last_epitaph}. Workers end before they make a sample; does worker_init_fn end them?"
                raise WorkerDied(msg)


_COLLATE_DIED = "DataLoader worker exited unexpectedly, for the second time, while it ran collate_fn on the same batch"
