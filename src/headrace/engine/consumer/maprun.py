"""One epoch over a map-style dataset with workers: what the epoch's machine says is done here."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import StoreError, WorkerDied
from headrace.engine.consumer.arriving import ArrivingGroups, Planned
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.exchange import ExchangedGroups
from headrace.engine.consumer.hand import NOT_YET, Hand, Hands, NotYet
from headrace.engine.consumer.order import Groups
from headrace.engine.consumer.outcomes import Outcomes
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.pulse import LOOK_SECONDS
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.stragglers import Stragglers
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.consumer.watch import Watch
from headrace.engine.consumer.writing import IndexWriter
from headrace.engine.memory.slots import Slots
from headrace.sched.acts import Act, Ready, Terms
from headrace.sched.book import Settled
from headrace.sched.epochmachine import EpochMachine
from headrace.sched.publication import Batch
from headrace.sched.resume import Resume

Source = Groups | ExchangedGroups | ArrivingGroups
NO_SLOT_SECONDS = 0.02
"""How often to look for memory while all of it is the user's, or a worker's that has not come back."""


@dataclass(frozen=True, slots=True)
class Staffing:
    """Who works on an epoch."""

    spares: Callable[[int], int]
    """Processes that may stand in for those busy with slow samples, from the number of lanes."""
    automatic: Automatic | None = None
    """Decides how many lanes work; None leaves it at the pool's."""
    stragglers: Stragglers | None = None
    """Samples to begin as soon as they are drawn; None where a batch is made by one lane."""


@dataclass(frozen=True, slots=True)
class Succession:
    """An epoch's place among the others."""

    seed: int
    epoch: int
    follower: "Callable[[MapRun], MapRun | None] | None" = None
    """Makes the run of the next epoch, for lanes that find nothing left in this one; None: they wait."""
    after: "MapRun | None" = None
    """The run that this one follows: it draws when that one lets it, and delivers once it was told to ``begin``."""


class MapRun:
    """Delivers each index of the epoch exactly once. The pool outlives the run; the slots do too."""

    def __init__(
        self,
        pool: Pool,
        slots: Slots,
        groups: Source,
        terms: Terms,
        staffing: Staffing,
        succession: Succession,
        service: Service,
    ) -> None:
        """Hands out work at once, unless it follows another run."""
        self._pool, self._slots, self._terms, self._staffing = pool, slots, terms, staffing
        self._service, self._tally = service, service.tally
        self._ledger = pool.ledger()
        self._follower, self._after = succession.follower, succession.after
        self.hands: Hands[Settled] = deque()
        before = None if self._after is None else self._after.machine
        self.machine: EpochMachine[Source] = EpochMachine(self._ledger, terms, groups, pool, self.hands, before)
        """What comes next, and what was drawn and not delivered."""
        self._next: MapRun | None = None
        self._writer = IndexWriter(pool.memory, self._ledger)
        self._outcomes = Outcomes(pool.memory, slots, self._ledger, service)
        self._torn = False  # something was under way: after an interrupt, the ledger is begun again
        self.is_done = False  # everything was delivered
        self._idle_deaths = self._ready = 0
        self._ledger.seed(succession.seed)
        if self._after is not None:
            self.machine.follow(succession.epoch)
            return
        automatic = staffing.automatic
        self.machine.begin(succession.epoch, pool.workers if automatic is None else automatic.lanes)
        self._begin()

    @property
    def may_begin(self) -> bool:
        """Whether the run before delivered everything; otherwise this one is void."""
        return self._after is not None and self._after.is_done

    def begin(self) -> None:
        """Take over from the run before."""
        self._after = None
        self.machine.take_over()
        self._begin()

    def _begin(self) -> None:
        self._tally.lane_changes.note(self._ledger.limit)
        self._watch = Watch(self._pool, self._ledger, self._tally, self._staffing.spares, self._staffing.automatic)
        self.draw_ahead()

    def draw_ahead(self, room: int | None = None) -> None:
        """Have batches made: ``room`` of them while the epoch before this one, all of it published, is delivered.

        What a store refuses is raised where a batch is waited for.
        """
        machine = self.machine
        machine.start_ahead(room)
        while (act := machine.next()) != Act.WAIT:
            if act == Act.DRAW:
                try:
                    self._draw()
                except StoreError:
                    machine.stuck()
            elif act == Act.RING:
                self._pool.ring(machine.woken)

    def _draw(self) -> None:
        """The next group of the order, if there is one that can be had now."""
        machine = self.machine
        indices = machine.source.head()
        if indices is None:
            machine.dry()
            return
        if indices is NOT_YET:
            self._ask_early()
        slot = None if indices is NOT_YET else self._slots.acquire(self._is_busy, force=machine.must)
        if slot is None or indices is NOT_YET:
            machine.stuck()
            return
        try:
            free, size = machine.is_free, len(indices)
            release = indices.settled if isinstance(indices, Planned) else None
            group = machine.book.enter(indices, -1 if free else slot, release)
            kind, blob = self._writer.write(group)
        except BaseException:
            self._slots.release(slot)
            raise
        batch = Batch(slot, size, self._terms.collate, group.number, size, kind, blob, free)
        machine.drew(batch, group, self._ahead(indices))
        machine.source.taken()  # until now it is listed there, and not in the book

    def _is_busy(self, slot: int) -> bool:
        return self._ledger.is_busy(slot, self._pool.lanes)

    def _ahead(self, indices: list[Any]) -> list[int]:
        """Positions of samples known to be extraordinarily slow."""
        stragglers = self._staffing.stragglers
        if stragglers is None or self._ledger.is_local:
            return []
        stragglers.learn(self._ledger)
        return stragglers.among(indices, self._ledger)

    def _following(self) -> "MapRun | None":
        """The run of the next epoch, if it can be foreseen; a run that follows has none yet."""
        if self._follower is None or self._after is not None or self._ledger.is_local:
            return None
        self._next = self._next or self._follower(self)
        if self._next is None:
            self._follower = None
        else:
            self.machine.follower = self._next.machine
        return self._next

    def _draw_early(self) -> None:
        """Have lanes go on with the next epoch, if that may be begun."""
        following = self._following()
        if following is not None:
            following.draw_ahead(self.machine.room)

    def _ask_early(self) -> None:
        """Have rows of the next epoch brought behind the last ones of this."""
        source = self.machine.source
        following = self._following() if isinstance(source, ArrivingGroups) and source.is_drawn else None
        if following is not None and isinstance(following.machine.source, ArrivingGroups):
            following.machine.source.ask()

    def progress(self) -> dict[str, Any]:
        """What is needed to go on from here in another process. Right whenever it is asked for, also by a handler."""
        hands = list(self.hands)
        waiting = [indices for hand in hands if hand.load is not None for indices in _indices(hand.then)]
        return self._owed(waiting)

    def _owed(self, before: list[list[Any]]) -> dict[str, Any]:
        """What was drawn and is in nobody's hand, after ``before``."""
        groups, book = self.machine.facts
        owed = book.owed([hand.then for hand in list(self.hands)], besides=groups.drawn)
        return groups.progress(before + owed)

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        self._after = None
        held = self.machine.open
        if self._torn:
            self._pool.section().end()
            self._pool.ring(range(self._pool.lanes))
            self._slots.reclaim(() if self._next is None else list(self._next.machine.open))
            held.clear()
        while held:
            self._slots.release(held.popitem()[0])
        self.hands.clear()
        self.machine.source.abandon()

    def next(self, *, block: bool = True) -> Hand[Settled] | NotYet:
        """The next batch, or what a sample raised, in a hand; raises StopIteration at the end.

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
        """An interrupt broke something off. What was drawn and not delivered is known, so it is begun again."""
        self._pool.section().end()
        self._begin_again(local=self._ledger.is_local)
        self._pool.ring(range(self._pool.lanes))  # one of them may count as woken

    def _begin_again(self, *, local: bool) -> None:
        """Begin what is owed again: what lanes do for the old generation is dropped when they come back with it."""
        machine = self.machine
        pending = self._owed([])["pending"]
        machine.give_up(local=local)
        if self._next is not None:
            self._next.abandon()
            self._follower = None
        machine.go_on_from(machine.source.again(pending))
        self._slots.reclaim()

    def _take(self, *, block: bool) -> Hand[Settled] | NotYet:
        machine = self.machine
        deadline = time.monotonic() + self._service.timeout if self._service.timeout else None
        if machine.open:
            self._ready = machine.count_ready()
            self._tally.ready += self._ready / len(machine.open)
            self._tally.asked += 1
        waited = 0.0
        machine.start()
        while (act := machine.next()) != Act.END:
            if act == Act.WAIT:
                if not block:
                    return NOT_YET
                waited += self._sleep(deadline)
                if machine.is_held_back:
                    self._terms.window.waited(waited, self._ledger.idle(self._pool.lanes), self._ledger.limit)
                machine.start()
            elif act in (Act.JUDGE, Act.DELIVER):
                hand = self._failed() if act == Act.JUDGE else self._finished()
                if hand is not None:
                    self.hands.append(hand)
                    return hand
            else:
                self._do(act)
        self._watch.count()
        self.is_done, self._torn = True, False
        raise StopIteration

    def _do(self, act: Act) -> None:
        machine = self.machine
        if act == Act.DRAW:
            self._draw()
        elif act == Act.RING:
            self._pool.ring(machine.woken)
        elif act == Act.WATCH:
            self._watch.look(draining=machine.exhausted and self._next is None)
        elif act == Act.DRAW_EARLY:
            self._draw_early()
        elif act == Act.EXAMINE and self._outcomes.cannot_travel(machine.failed):
            self._begin_again(local=True)
        elif act == Act.CLOSED:
            for slot in machine.dropped:
                self._slots.release(slot)
            self._pool.ring(machine.woken)

    def _failed(self) -> Hand[Settled] | None:
        """What a sample raises; None where it is only counted."""
        failed = self.machine.failed[0]
        settled: Settled = [(failed.group, {failed.position})]
        error = self._outcomes.judged(failed)
        if error is not None:
            return Hand(error, settled, Delivered())
        self.machine.settle(settled)
        return None

    def _finished(self) -> Hand[Settled] | None:
        """A batch, or why there is none; None where nothing is left of it."""
        machine = self.machine
        assert isinstance(machine.ready, Ready)
        others = max(0, self._ready - 1)
        made = self._outcomes.batch(machine.ready, others, len(machine.open))
        if made is None:
            machine.settle(machine.ready.settled)
            return None
        self._watch.delivered(others / machine.share)
        self._idle_deaths = 0
        return made

    def _sleep(self, deadline: float | None) -> float:
        """Until something happens; how long that was. The dead are replaced and their work is queued again."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            msg = f"DataLoader timed out after {self._service.timeout} seconds{self._busy_with()}"
            self._torn = False
            raise RuntimeError(msg)
        began = time.monotonic()
        besides = self.machine.source.waited_for()
        times = (
            left,
            self._watch.due(),
            None if self.machine.open else NO_SLOT_SECONDS,
            self._terms.window.patience if self.machine.is_held_back else None,
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

    def _busy_with(self) -> str:
        """What the workers are at, for a message."""
        busy = self._pool.late()
        for lane in range(self._pool.lanes):
            number, position = self._ledger.making(lane)
            group = self.machine.book.groups.get(number)
            if group is not None and position < len(group.indices):
                busy.append(f"worker {lane} makes sample {group.indices[position]!r}")
        return f" ({'; '.join(busy)})" if busy else ""

    def _replace(self, lane: int) -> None:
        pid, how = self._pool.epitaph(lane)
        self._outcomes.epitaph = (
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}"
        )
        repair = self.machine.repair(lane)
        self._slots.forget(lane)
        self._tally.restarts += 1
        self._tally.repeats += repair.reissued
        self._pool.restart(lane, Resume())
        self._pool.ring(self._ledger.wake(self._pool.lanes))
        if repair.ticket is None and repair.collating < 0:
            self._idle_deaths += 1
            if self._idle_deaths > self._pool.lanes + 1:
                msg = f"{self._outcomes.epitaph}. Workers end before they make a sample; does worker_init_fn end them?"
                self._torn = False
                raise WorkerDied(msg)


def _indices(settled: Settled) -> list[list[Any]]:
    return [[group.indices[position] for position in sorted(positions)] for group, positions in settled]
