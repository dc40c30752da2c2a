"""One epoch over a map-style dataset with workers: draw, publish, wait, deliver."""

import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import islice, takewhile
from typing import Any

from headrace.core.errors import BatchNotSendable, WorkerDied
from headrace.engine.consumer.arriving import ArrivingGroups
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.book import Book, Group, Numbers, Settled
from headrace.engine.consumer.exchange import ExchangedGroups
from headrace.engine.consumer.hand import NOT_YET, Hand, Hands, NotYet
from headrace.engine.consumer.order import Groups
from headrace.engine.consumer.outcomes import Outcomes
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.pulse import LOOK_SECONDS
from headrace.engine.consumer.stragglers import Stragglers
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.consumer.watch import Watch
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.engine.worker.job import Resume
from headrace.plan.lookahead import Lookahead
from headrace.sched.consumer import Batch


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
        groups: Groups | ExchangedGroups | ArrivingGroups,
        *,
        arrangement: Arrangement,
        window: Lookahead,
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
        """``window``: how many batches to have made ahead. ``collate``: a worker must collate each batch.

        ``spares``: processes that may stand in for those busy with slow samples, from the number of lanes.
        ``displacement``: batches by which a sample may be overtaken in free order, 0 for any number.
        ``automatic``: decides how many lanes work; None leaves it at the pool's.
        ``stragglers``: samples to begin as soon as they are drawn; None where a batch is made by one lane.
        ``follower``: makes the run of the next epoch, for lanes that find nothing left in this one; None: they wait.
        ``after``: the run that this one follows.
        """
        self._pool, self._slots, self._arrangement = pool, slots, arrangement
        self._window, self._collate, self._drop_last, self._timeout = window, collate, drop_last, timeout
        self._errors, self._tally = errors, tally
        self._memory, self._words, self._dims = pool.memory, pool.memory.words, pool.memory.dims
        self._ledger = pool.ledger()
        self._facts = groups, Book(pool.memory, Numbers() if after is None else after.numbers)
        self._spares, self._automatic, self._stragglers = spares, automatic, stragglers
        self._follower, self._after = follower, after
        self._next: MapRun | None = None
        self._outcomes = Outcomes(pool, slots, self._ledger, errors, tally)
        self._open: dict[int, Group | None] = {}  # slots of batches to come, in order; their groups where as drawn
        self.hands: Hands[Settled] = deque()
        self._torn = False  # something was under way: after an interrupt, the ledger is begun again
        self._lost = 0
        self._size = 1
        self._exhausted = False
        self.is_done = False  # everything was delivered
        self._seen_failures = self._examined = 0
        self._idle_deaths = 0
        self._ready, self._displacement = 0, displacement
        self._ledger.seed(seed[0])
        epoch = seed[1]
        self._to_follow: int | None = None  # the epoch that the ledger is not told of yet
        if after is not None:
            self._to_follow = epoch
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
        self._follow()
        self._after = None
        with self._pool.section():
            self._ledger.advance(self._book.groups)
        self._begin()

    def _follow(self) -> None:
        """Tell the ledger, once, that nothing more is published of the epoch before this one."""
        if self._to_follow is not None:
            with self._pool.section():
                self._ledger.follow(self._to_follow)
            self._to_follow = None

    def _begin(self) -> None:
        self._tally.lane_changes.note(self._ledger.limit)
        self._watch = Watch(self._pool, self._ledger, self._tally, self._spares, self._automatic)
        self._draw()

    @property
    def _groups(self) -> Groups | ExchangedGroups | ArrivingGroups:
        return self._facts[0]

    @property
    def _book(self) -> Book:
        return self._facts[1]

    @property
    def numbers(self) -> Numbers:
        """Those that its groups have in the ledger."""
        return self._book.numbers

    def _draw(self, *, one_more: bool = False) -> bool:
        """Keep ``window`` batches outstanding, or draw ``one_more``; samples that failed leave room for others.

        False when there was room for a batch that could not be had.
        """
        room = self._room()
        while not self._exhausted:
            if len(self._open) >= room + self._lost // max(1, self._size) and not one_more:
                return True
            if not self._draw_one(force=not self._open or one_more):
                return False
            one_more = False
        following = self._following() if len(self._open) < room else None
        if following is not None:
            following.draw_early(room - len(self._open))
        return True

    def _room(self) -> int:
        """Batches that may be drawn and not delivered; half of the slots are left to the user and to other epochs."""
        return max(1, min(self._window.batches * self._ledger.limit, self._dims.slots // 2))

    def _following(self) -> "MapRun | None":
        """The run of the next epoch, if it can be foreseen; a run that follows has none yet."""
        if self._follower is None or self._after is not None or self._ledger.is_local:
            return None
        self._next = self._next or self._follower(self)
        if self._next is None:
            self._follower = None
        return self._next

    def draw_early(self, room: int) -> None:
        """Have ``room`` batches of this epoch made while the one before it, all of it published, is delivered."""
        self._follow()
        while not self._exhausted and len(self._open) < room and self._draw_one(force=False):
            pass

    def ask_early(self) -> None:
        """Have rows of this epoch brought behind the last ones of the epoch before it."""
        if isinstance(self._groups, ArrivingGroups):
            self._groups.ask()

    def _draw_one(self, *, force: bool) -> bool:
        """Publish the next batch of the order, if there is one; False when it is not here, or finds no slot."""
        head = self._groups.head()
        if head is NOT_YET:
            if isinstance(self._groups, ArrivingGroups) and self._groups.is_drawn:
                following = self._following()
                if following is not None:
                    following.ask_early()
            return False
        if head is None:
            self._exhausted = True
            return True
        if not self._publish(head, force=force):
            return False
        self._groups.taken()  # until now it is listed there, and not in the book
        return True

    def _publish(self, indices: list[Any], *, force: bool) -> bool:
        """Hand a batch out; False when there is no slot for it now."""
        free = self._arrangement is Arrangement.FREE
        ledger, lanes, size = self._ledger, self._pool.lanes, len(indices)
        slot = self._slots.acquire(self._is_busy, force=force)
        if slot is None:
            return False
        try:
            group, kind, blob = self._book.write(indices, -1 if free else slot)
        except BaseException:
            self._slots.release(slot)
            raise
        self._size = size
        self._open[slot] = None if free else group
        if indices:
            batch = Batch(slot, size, self._collate, group.number, size, kind, blob, free)
            self._pool.ring(ledger.publish(batch, lanes, self._ahead(indices)))
        else:
            self._pool.ring(ledger.publish_empty(slot, group.number, lanes))
        return True

    def _is_busy(self, slot: int) -> bool:
        return self._ledger.is_busy(slot, self._pool.lanes)

    def _ahead(self, indices: list[Any]) -> list[int]:
        """Positions of samples known to be extraordinarily slow."""
        if self._stragglers is None or self._ledger.is_local:
            return []
        self._stragglers.learn(self._ledger)
        return self._stragglers.among(indices, self._ledger)

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here in another process. Right whenever it is asked for, also by a handler."""
        hands = list(self.hands)
        waiting = [indices for hand in hands if hand.load is not None for indices in _indices(hand.then)]
        return self._owed(waiting)

    def _owed(self, before: list[list[Any]]) -> dict[str, Any]:
        """What was drawn and is in nobody's hand, after ``before``."""
        groups, book = self._facts
        owed = book.owed([hand.then for hand in list(self.hands)], besides=groups.drawn)
        return groups.progress(before + owed)

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        self._after = None
        if self._torn:
            self._pool.section().end()
            self._pool.ring(range(self._pool.lanes))
            self._slots.reclaim(self._next.holdings()[1] if self._next is not None else ())
            self._open.clear()
        while self._open:
            self._slots.release(self._open.popitem()[0])
        self.hands.clear()
        self._groups.abandon()

    def next(self, *, block: bool = True) -> Hand[Settled] | NotYet:
        """The next batch, or what a sample raised, in a hand; raises StopIteration at the end.

        With ``block`` off, ``NOT_YET`` when no batch is ready. After an interrupt, at whatever point of it, the next
        call goes on: see ``hand``.
        """
        while self.hands and self.hands[0].load is None:
            self._book.settle(self.hands[0].then)
            self.hands.popleft()
        if self._torn:
            self._mend()
        self._torn = True
        made = self._take(block=block)
        self._torn = False
        return made

    def _mend(self) -> None:
        """An interrupt broke something off. What was drawn and not delivered is known, so it is begun again."""
        self._pool.section().end()
        self._begin_again(local=self._ledger.is_local)
        self._pool.ring(range(self._pool.lanes))  # one of them may count as woken

    def _take(self, *, block: bool) -> Hand[Settled] | NotYet:
        deadline = time.monotonic() + self._timeout if self._timeout else None
        if self._open:
            self._ready = self._count_ready()
            self._tally.ready += self._ready / len(self._open)
            self._tally.asked += 1
        waited = 0.0
        while True:
            self._draw()
            if self._samples_cannot_travel():
                self._begin_again(local=True)
                continue
            self._watch.look(draining=self._exhausted and self._next is None)
            failed = self._failure()
            if failed is not None:
                return self._handed(failed)
            if not self._open and self._exhausted:
                self._watch.count()
                self.is_done, self._torn = True, False
                raise StopIteration
            slot = self._look()
            if self._samples_cannot_travel():
                self._begin_again(local=True)
            elif slot is not None:
                made = self._finished(slot, waited)
                if made is not None:
                    return self._handed(made)
            elif self._starved() and self._draw(one_more=True):
                continue
            elif not block and (self._open or not self._exhausted):
                return NOT_YET
            elif self._open or not self._exhausted:
                waited += self._sleep(deadline)

    def _finished(self, slot: int, waited: float) -> Hand[Settled] | None:
        """What came of a slot, after waiting so long for it; None if nothing is to be delivered."""
        if not self._exhausted:
            self._window.waited(waited, self._ledger.idle(self._pool.lanes) if waited else 0, self._ledger.limit)
        made = self._outcomes.batch(slot, self._open.pop(slot), self._book)
        if made is not None:
            made.delivered = made.delivered._replace(ready=max(0, self._ready - 1), outstanding=len(self._open))
            self._watch.delivered(made.delivered.ready / self._room())
            self._idle_deaths = 0
        return made

    def _handed(self, hand: Hand[Settled]) -> Hand[Settled]:
        self.hands.append(hand)
        return hand

    def _count_ready(self) -> int:
        """Batches that could be delivered one after the other, now."""
        if self._arrangement is Arrangement.BATCHES:
            return sum(map(self._ledger.is_ready, self._open))
        return sum(1 for _ in takewhile(self._ledger.is_ready, self._open))

    def _samples_cannot_travel(self) -> bool:
        """Whether a sample failed only because it cannot be sent to the worker that collates."""
        failures = self._ledger.failures
        if failures == self._examined or self._ledger.is_local:
            return False
        self._examined = failures
        with self._pool.section():
            failed = self._ledger.failed(list(self._book.groups))
        found = (self._outcomes.packed(self._book.groups[number], blob) for number, _, blob in failed)
        return any(packed is not None and failure.is_a(packed, BatchNotSendable) for packed in found)

    def _begin_again(self, *, local: bool) -> None:
        """Begin what is owed again: what lanes do for the old generation is dropped when they come back with it.

        ``local``: each batch on one worker, since what cannot be sent may still be collated where it is.
        """
        pending = self._owed([])["pending"]
        if local and self._arrangement is Arrangement.FREE:
            self._arrangement = Arrangement.BATCHES
        free = self._arrangement is Arrangement.FREE
        with self._pool.section():
            limit, epoch = self._ledger.limit, self._ledger.epoch
            self._ledger.reset(free_order=free, limit=limit, displacement=self._displacement, epoch=epoch)
            if local:
                self._ledger.stay_local()
            self._ledger.count_lanes(self._pool.lanes)
        if self._next is not None:
            self._next.abandon()
            self._follower = None
        self._facts = self._groups.again(pending), Book(self._memory, Numbers())
        self._open.clear()
        self._slots.reclaim()
        self._lost = self._seen_failures = self._examined = 0
        self._exhausted = False

    def _starved(self) -> bool:
        """Free order: so many samples failed that the next batch cannot be filled from what is drawn."""
        if self._arrangement is not Arrangement.FREE or self._exhausted or not self._ledger.is_resolved:
            return False
        return not self._open or self._ledger.is_filling(next(iter(self._open)))

    def _look(self) -> int | None:
        """A slot to deliver; None after arranging to be woken."""
        if self._arrangement is not Arrangement.BATCHES and self._open:
            first = next(iter(self._open))
            if self._ledger.is_ready(first):
                return first  # it stays ready: nobody has to be kept out to see it
        # In free order batches come as they were filled: the next one is never behind the others for long.
        candidates = list(self._open) if self._arrangement is Arrangement.BATCHES else list(islice(self._open, 1))
        found = self._ledger.look(candidates)
        if found is None and self._all_resolved():  # asked after lanes know that they are waited for, or none would say
            with self._pool.section():
                self._close_tail()
            candidates = list(islice(self._open, 1))
            found = self._ledger.look(candidates) if candidates else None
        if found is None and self._exhausted:  # no batch will be published any more that would wake those who wait
            self._pool.ring(self._ledger.wake(self._pool.lanes))
        return found

    def _all_resolved(self) -> bool:
        """Free order: whatever was drawn was made or failed, and no more is drawn."""
        return self._arrangement is Arrangement.FREE and self._exhausted and self._ledger.is_resolved

    def _close_tail(self) -> None:
        """Samples were left out, so the last batches stay short of rows. The lock is held."""
        for slot in list(self._open):
            filling = self._ledger.is_filling(slot)
            if filling and (self._drop_last or not self._ledger.close(slot)):
                self._book.settle(self._outcomes.settled(slot, self._ledger.present(slot), self._book))
                self._slots.release(slot)
                del self._open[slot]
        self._pool.ring(self._ledger.rouse(self._pool.lanes))

    def _failure(self) -> Hand[Settled] | None:
        """Free order: failures come out as soon as they are seen."""
        if self._arrangement is not Arrangement.FREE or self._ledger.failures == self._seen_failures:
            return None
        failed = None
        while failed is None:
            if self._samples_cannot_travel():
                self._begin_again(local=True)
                return None
            with self._pool.section():
                if self._ledger.failures == self._examined:  # else one failed meanwhile that may only not travel
                    failed = self._ledger.failed(list(self._book.groups))
        handed = {(id(group), at) for hand in self.hands for group, positions in hand.then for at in positions}
        for number, position, blob in failed:
            group = self._book.groups.get(number)
            if group is None or position not in group.owed or (id(group), position) in handed:
                continue
            self._seen_failures += 1
            self._lost += 1
            error, settled = self._outcomes.judged(group, position, blob), [(group, {position})]
            if error is not None:
                return Hand(error, settled, Delivered())
            self._book.settle(settled)
        return None

    def _sleep(self, deadline: float | None) -> float:
        """Until something happens; how long that was. The dead are replaced and their work is queued again."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            msg = f"DataLoader timed out after {self._timeout} seconds{self._busy_with()}"
            self._torn = False
            raise RuntimeError(msg)
        began = time.monotonic()
        besides = self._groups.waited_for()
        times = (
            *(left, self._watch.due(), None if self._open else NO_SLOT_SECONDS),
            LOOK_SECONDS if besides[0] >= 0 else None,
        )
        self._torn = False
        seconds = min((seconds for seconds in times if seconds is not None), default=None)
        dead = self._pool.wait(seconds, besides)
        self._torn = True
        took = time.monotonic() - began
        self._watch.waited(took)
        for lane in dead:
            self._replace(lane)
        return took

    def holdings(self) -> tuple[list[int], list[int]]:
        """Its groups and slots in the ledger."""
        return list(self._book.groups), list(self._open)

    def _busy_with(self) -> str:
        """What the workers are at, for a message."""
        busy = self._pool.late()
        for lane in range(self._pool.lanes):
            number, position = self._ledger.making(lane)
            group = self._book.groups.get(number)
            if group is not None and position < len(group.indices):
                busy.append(f"worker {lane} makes sample {group.indices[position]!r}")
        return f" ({'; '.join(busy)})" if busy else ""

    def _replace(self, lane: int) -> None:
        pid, how = self._pool.epitaph(lane)
        self._outcomes.epitaph = (
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}"
        )
        groups, slots = self.holdings()
        if self._next is not None:
            early = self._next.holdings()
            groups, slots = groups + early[0], slots + early[1]
        with self._pool.section():
            repair = self._ledger.repair(lane, self._pool.lanes, groups, slots)
        self._slots.forget(lane)
        self._tally.restarts += 1
        self._tally.repeats += repair.reissued
        self._pool.start_one(lane, Resume())
        self._pool.ring(self._ledger.wake(self._pool.lanes))
        if repair.ticket is None and repair.collating < 0:
            self._idle_deaths += 1
            if self._idle_deaths > self._pool.lanes + 1:
                msg = f"{self._outcomes.epitaph}. Workers end before they make a sample; does worker_init_fn end them?"
                self._torn = False
                raise WorkerDied(msg)


def _indices(settled: Settled) -> list[list[Any]]:
    return [[group.indices[position] for position in sorted(positions)] for group, positions in settled]


NO_SLOT_SECONDS = 0.02
"""How often to look for memory while all of it is the user's, or a worker's that has not come back."""
