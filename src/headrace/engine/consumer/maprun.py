"""One epoch over a map-style dataset with workers: what the epoch's machine says is done here."""

import time

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.drawing import Drawing, Source, Staffing, Succession
from headrace.engine.consumer.hand import NOT_YET, Hand, NotYet
from headrace.engine.consumer.outcomes import Outcomes
from headrace.engine.consumer.processes.pool import Pool
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.supply.pulse import LOOK_SECONDS
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.consumer.watch import Watch
from headrace.engine.memory.slots import Slots
from headrace.sched.acts import (
    Command,
    Deliver,
    Draw,
    DrawEarly,
    End,
    Examine,
    Failed,
    Judge,
    ReadySlot,
    Release,
    Ring,
    SeeAfterLanes,
    Terms,
    Wait,
)
from headrace.sched.book import Settled
from headrace.sched.resume import Resume

NO_SLOT_SECONDS = 0.02
"""How often to look for memory while all of it is the user's, or a worker's that has not come back."""


class MapRun(Drawing):
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
        super().__init__(pool, slots, groups, terms, staffing, succession)
        self._service, self._tally = service, service.tally
        self.errors = service.errors
        """What becomes of samples that fail."""
        self._outcomes = Outcomes(pool.memory, slots, self._ledger, service)
        self._idle_deaths = 0
        self._ledger.seed(succession.seed)
        if self._after is not None:
            self.machine.follow(succession.epoch)
            return
        automatic = staffing.automatic
        self.machine.begin(succession.epoch, pool.workers if automatic is None else automatic.lanes)
        self._begin()

    def begin(self) -> None:
        """Take over from the run before."""
        self._after = None
        self.machine.take_over()
        self._begin()

    def _begin(self) -> None:
        self._tally.lane_changes.note(self._ledger.limit)
        self._watch = Watch(self._pool, self._ledger, self._tally, self._staffing.spares, self._staffing.automatic)
        self.draw_ahead()

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
            self._next = self._follower = None
        machine.go_on_from(machine.source.again(pending))
        self._slots.reclaim()

    def _take(self, *, block: bool) -> Hand[Settled] | NotYet:
        machine = self.machine
        deadline = time.monotonic() + self._service.timeout if self._service.timeout else None
        if machine.open or not machine.exhausted:  # where nothing was made ahead, nothing is ready
            self._tally.ready += machine.count_ready() / max(1, len(machine.open))
            self._tally.asked += 1
        waited = 0.0
        machine.start()
        while not isinstance(command := machine.next(), End):
            if isinstance(command, Wait):
                if not block:
                    return NOT_YET
                waited += self._sleep(deadline)
                if machine.is_held_back:
                    self._terms.window.waited(waited, self._ledger.idle(self._pool.lanes), self._ledger.limit)
                machine.start()
            elif isinstance(command, (Judge, Deliver)):
                hand = self._failed(command.failed) if isinstance(command, Judge) else self._finished(command.ready)
                if hand is not None:
                    self.hands.append(hand)
                    return hand
            else:
                self._do(command)
        self._watch.count()
        self.is_done, self._torn = True, False
        raise StopIteration

    def _do(self, command: Command) -> None:
        match command:
            case Draw(must=must):
                self._draw(must=must)
            case Ring(lanes=lanes):
                self._pool.ring(lanes)
            case SeeAfterLanes():
                self._watch.look(draining=self.machine.exhausted and self._next is None)
            case DrawEarly(room=room):
                self._draw_early(room)
            case Examine(failed=failed) if self._outcomes.cannot_travel(failed):
                self._begin_again(local=True)
            case Release(slots=slots, lanes=lanes):
                for slot in slots:
                    self._slots.release(slot)
                self._pool.ring(lanes)

    def _failed(self, failed: Failed) -> Hand[Settled] | None:
        """What a sample raises; None where it is only counted."""
        settled: Settled = [(failed.group, {failed.position})]
        error = self._outcomes.judged(failed)
        if error is not None:
            return Hand(error, settled, Delivered())
        self.machine.settle(settled)
        return None

    def _finished(self, ready: ReadySlot) -> Hand[Settled] | None:
        """A batch, or why there is none; None where nothing is left of it."""
        machine = self.machine
        made = self._outcomes.batch(ready, machine.lined_up, len(machine.open))
        if made is None:
            machine.settle(ready.settled)
            return None
        self._watch.delivered(machine.lined_up / machine.share)
        self._idle_deaths = 0
        return made

    def _sleep(self, deadline: float | None) -> float:
        """Until something happens; how long that was. The dead are replaced and their work is queued again."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            msg = f"DataLoader timed out after {self._service.timeout} seconds{self._busy_with()}{self._pool.told()}"
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
        self._tally.repeats += len(repair.reissued)
        self._pool.restart(lane, Resume())
        self._pool.ring(self._ledger.wake(self._pool.lanes))
        if repair.ticket is None and repair.collating < 0:
            self._idle_deaths += 1
            if self._idle_deaths > self._pool.lanes + 1:
                msg = f"{self._outcomes.epitaph}. Workers end before they make a sample; does worker_init_fn end them?"
                msg += self._pool.told()
                self._torn = False
                raise WorkerDied(msg)
