"""Work of a run on the samples of a map-style dataset: it draws groups of indices, hands them out, takes batches."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from headrace.core.errors import StoreError
from headrace.engine.memory.slab import Slots
from headrace.engine.processes.worker_pool import Pool
from headrace.engine.trainer.counters import Errors, LoaderCounters
from headrace.engine.trainer.delivery import Outcomes
from headrace.engine.trainer.watch import Staffing, Watch
from headrace.engine.trainer.writing import written
from headrace.sched.epochs import oversight, trainer_commands
from headrace.sched.epochs.book import Settled
from headrace.sched.epochs.epoch import Epoch
from headrace.sched.epochs.epochmachine import EpochMachine
from headrace.sched.epochs.publication import Batch
from headrace.sched.hand import NOT_YET, Delivered, Hand, Hands
from headrace.sched.resume import Resume
from headrace.sched.source import LOOK_SECONDS, Source

NO_SLOT_SECONDS = 0.02
"""Seconds between looks for memory while all of it is the user's, or a worker's that has not come back."""


class EpochDriver:
    """The work of one epoch: what was drawn and not delivered."""

    def __init__(
        self,
        pool: Pool,
        slots: Slots,
        errors: Errors,
        counters: LoaderCounters,
        groups: Source,
        terms: trainer_commands.Terms,
        staffing: Staffing,
        seeds: tuple[int, int],
    ) -> None:
        """``seeds``: the seed, and the number of the epoch."""
        self.pool, self.slots, self.errors, self.counters = pool, slots, errors, counters
        self._terms, self._staffing = terms, staffing
        seed, self._number = seeds
        self.ledger = pool.ledger()
        self.hands: Hands[Settled] = deque()
        self.epoch: Epoch = Epoch(self.ledger, terms, groups, pool, self.hands)
        """The samples that were drawn and not delivered."""
        self.machine = EpochMachine(self.epoch)
        self._outcomes = Outcomes(pool.memory, slots, self.ledger, errors, counters)
        self.ledger.seed(seed)

    def begin(self) -> None:
        automatic = self._staffing.automatic
        self.epoch.begin(self._number, self.pool.workers if automatic is None else automatic.lanes)
        self.counters.lane_changes.note(self.ledger.limit)
        self._watch = Watch(self.pool, self.ledger, self.counters, self._staffing)

    def have_made(self) -> None:
        """Have as many batches made as may be ahead."""
        self.machine.start_ahead()
        while not isinstance(command := self.machine.next(), trainer_commands.Wait):
            self.do(command)

    def asked(self) -> None:
        """Count how much is ready when a batch is asked for; where nothing was made ahead, nothing is counted."""
        epoch = self.epoch
        if epoch.open or not epoch.exhausted:
            self.counters.ready += epoch.count_ready() / max(1, len(epoch.open))
            self.counters.asked += 1

    def do(self, command: object) -> Hand[Settled] | None:
        match command:
            case trainer_commands.Ring(lanes=lanes):
                self.pool.ring(lanes)
            case trainer_commands.Draw(must=must):
                try:
                    self._draw(must=must)
                except StoreError:
                    if not self.machine.is_ahead:
                        raise
                    self.machine.stuck()  # what a store refuses is raised where a batch is waited for
            case trainer_commands.SeeAfterLanes():
                self._watch.look(draining=self.epoch.exhausted)
            case trainer_commands.Deliver(ready=ready):
                return self._finished(ready)
            case trainer_commands.ReportFailure(failed=failed):
                return self._failed(failed)
            case trainer_commands.CheckSendable(failed=failed) if self._outcomes.cannot_travel(failed):
                self._begin_again()
            case trainer_commands.Release(slots=slots, lanes=lanes):
                for slot in slots:
                    self.slots.release(slot)
                self.pool.ring(lanes)
        return None

    def _draw(self, *, must: bool) -> None:
        """The next group, if there is one that can be had now. ``must``: see ``Draw``."""
        machine, epoch = self.machine, self.epoch
        group = epoch.draw()
        if group is None:
            machine.dry()
            return
        if group is NOT_YET:
            machine.stuck()
            return
        slot = self.slots.acquire(self._is_busy, force=must)
        if slot is None:
            machine.stuck()
            return
        try:
            epoch.book.enter(group)
            kind, blob = written(self.pool.memory, self.ledger, group)
        except BaseException:
            epoch.book.strike(group)
            self.slots.release(slot)
            raise
        size = len(group.indices)
        batch = Batch(slot, size, self._terms.collate, group.number, size, kind, blob, epoch.is_free)
        machine.drew(batch, group, self._ahead(group.indices))

    def _is_busy(self, slot: int) -> bool:
        return self.ledger.is_busy(slot, self.pool.lanes)

    def _ahead(self, indices: list[Any]) -> list[int]:
        """Positions of samples known to be extraordinarily slow."""
        stragglers = self._staffing.stragglers
        if stragglers is None or self.ledger.is_local:
            return []
        stragglers.learn(self.ledger)
        return stragglers.among(indices, self.ledger)

    def _failed(self, failed: trainer_commands.Failed) -> Hand[Settled] | None:
        """The error that a sample raises, in a hand; None where it is only counted."""
        settled: Settled = [(failed.group, {failed.position})]
        error = self._outcomes.judged(failed)
        if error is not None:
            return Hand(error, settled, Delivered())
        self.epoch.settle(settled)
        return None

    def _finished(self, ready: trainer_commands.ReadySlot) -> Hand[Settled] | None:
        """A batch, or why there is none; None where nothing is left of it."""
        epoch = self.epoch
        made = self._outcomes.batch(ready, epoch.lined_up, len(epoch.open))
        if made is None:
            epoch.settle(ready.settled)
            return None
        self._watch.delivered(epoch.lined_up / epoch.share)
        return made

    def patience(self) -> tuple[Sequence[float | None], tuple[int, int]]:
        """Seconds until a sample becomes slow, memory or rows may be there, or more may be drawn; and what else
        ends a wait.
        """
        epoch, besides = self.epoch, self.epoch.source.wakes()
        times = (
            self._watch.due(),
            None if epoch.open else NO_SLOT_SECONDS,
            self._terms.window.patience if epoch.is_held_back else None,
            LOOK_SECONDS if besides[0] >= 0 else None,
        )
        return times, besides

    def waited(self, seconds: float, since_asked: float) -> None:
        """Note a wait: the number of lanes and of batches ahead follow from it."""
        self._watch.waited(seconds)
        if self.epoch.is_held_back:
            self._terms.window.waited(since_asked, oversight.idle(self.ledger, self.pool.lanes), self.ledger.limit)

    def busy(self) -> list[str]:
        found = []
        for lane in range(self.pool.lanes):
            number, position = oversight.making(self.ledger, lane)
            group = self.epoch.book.groups.get(number)
            if group is not None and position < len(group.indices):
                found.append(f"worker {lane} makes sample {group.indices[position]!r}")
        return found

    def lost(self, lane: int, how: str) -> Resume:
        """Queue again what the worker held, or hold it against it."""
        self._outcomes.last_death = how
        self.counters.repeats += len(self.epoch.repair(lane).reissued)
        return Resume()

    def blamed(self, lane: int, how: str, resume: Resume) -> str | None:
        """The reason not to replace workers any more, which may be done as long as they make something; else None."""
        if not self.epoch.is_hopeless:
            return None
        return f"{self.pool.unimportable()}{how}. Workers end before they make a sample; does worker_init_fn end them?"

    def _begin_again(self) -> None:
        """Make what is owed again, each batch on one worker: its samples cannot travel between them."""
        self.machine.begin_again()
        self.slots.reclaim()

    def ended(self) -> None:
        """Note that all was delivered."""
        self._watch.count()

    def progress(self) -> dict[str, Any]:
        """The state needed to go on from here in another process. Right whenever it is asked for, also by a
        handler.
        """
        waiting = [
            [group.indices[position] for position in sorted(positions)]
            for hand in self.hands
            if hand.load is not None
            for group, positions in hand.then
        ]
        return self.epoch.source.state(waiting + self.epoch.owed())

    def abandon(self) -> None:
        """Give up the rest; slots go back, except those a lane still writes to."""
        held = self.epoch.open
        while held:
            self.slots.release(held.popitem()[0])
        self.epoch.source.close()
