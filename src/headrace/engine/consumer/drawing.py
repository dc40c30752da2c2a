"""What an epoch over a map-style dataset draws from its order, and hands out as work."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import StoreError
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.hand import NOT_YET, Hands
from headrace.engine.consumer.ordering.groups import Groups
from headrace.engine.consumer.processes.pool import Pool
from headrace.engine.consumer.stragglers import Stragglers
from headrace.engine.consumer.supply.arriving import ArrivingGroups, Planned
from headrace.engine.consumer.supply.exchange import ExchangedGroups
from headrace.engine.consumer.writing import IndexWriter
from headrace.engine.memory.slots import Slots
from headrace.sched.acts import Draw, Ring, Terms, Wait
from headrace.sched.book import Settled
from headrace.sched.epochmachine import EpochMachine
from headrace.sched.publication import Batch

Source = Groups | ExchangedGroups | ArrivingGroups


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
    follower: "Callable[[Drawing], Drawing | None] | None" = None
    """Makes the run of the next epoch, for lanes that find nothing left in this one; None: they wait."""
    after: "Drawing | None" = None
    """The run that this one follows: it draws when that one lets it, and delivers once it was told to ``begin``."""


class Drawing:
    """One epoch's: its machine, what was drawn and not delivered, and the epoch that follows."""

    def __init__(
        self, pool: Pool, slots: Slots, groups: Source, terms: Terms, staffing: Staffing, succession: Succession
    ) -> None:
        """Nothing is drawn yet."""
        self._pool, self._slots, self._terms, self._staffing = pool, slots, terms, staffing
        self._ledger = pool.ledger()
        self._follower, self._after = succession.follower, succession.after
        self.hands: Hands[Settled] = deque()
        before = None if self._after is None else self._after.machine
        self.machine: EpochMachine[Source] = EpochMachine(self._ledger, terms, groups, pool, self.hands, before)
        """What comes next, and what was drawn and not delivered."""
        self._next: Drawing | None = None
        self._writer = IndexWriter(pool.memory, self._ledger)
        self._torn = False  # something was under way: after an interrupt, the ledger is begun again
        self.is_done = False  # everything was delivered

    @property
    def may_begin(self) -> bool:
        """Whether the run before delivered everything; otherwise this one is void."""
        return self._after is not None and self._after.is_done

    def draw_ahead(self, room: int | None = None) -> None:
        """Have batches made: ``room`` of them while the epoch before this one, all of it published, is delivered.

        What a store refuses is raised where a batch is waited for.
        """
        machine = self.machine
        machine.start_ahead(room)
        while not isinstance(command := machine.next(), Wait):
            if isinstance(command, Draw):
                try:
                    self._draw(must=command.must)
                except StoreError:
                    machine.stuck()
            elif isinstance(command, Ring):
                self._pool.ring(command.lanes)

    def _draw(self, *, must: bool) -> None:
        """The next group of the order, if there is one that can be had now. ``must``: see ``Draw``."""
        machine = self.machine
        indices = machine.source.head()
        if indices is None:
            machine.dry()
            return
        if indices is NOT_YET:
            self._ask_early()
        slot = None if indices is NOT_YET else self._slots.acquire(self._is_busy, force=must)
        if slot is None or indices is NOT_YET:
            machine.stuck()
            return
        try:
            free, size = machine.is_free, len(indices)
            release = indices.settled if isinstance(indices, Planned) else None
            group = machine.book.enter(indices, release)
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

    def _following(self) -> "Drawing | None":
        """The run of the next epoch, if it can be foreseen; a run that follows has none yet."""
        if self._follower is None or self._after is not None or self._ledger.is_local:
            return None
        self._next = self._next or self._follower(self)
        if self._next is None:
            self._follower = None
        else:
            self.machine.follower = self._next.machine
        return self._next

    def _draw_early(self, room: int) -> None:
        """Have lanes go on with ``room`` batches of the next epoch, if that may be begun."""
        following = self._following()
        if following is not None:
            following.draw_ahead(room)

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


def _indices(settled: Settled) -> list[list[Any]]:
    return [[group.indices[position] for position in sorted(positions)] for group, positions in settled]
