"""The trainer's use of the ledger: to begin an epoch, see what is ready, what failed and what is left.

How it publishes work is in ``publication``; what it does about lanes are functions in ``oversight``, and for the dead
those in ``repair``. The caller brings the lock: hot methods take it, the others want it held.
"""

from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs import publication
from headrace.sched.epochs.oversight import rouse
from headrace.sched.epochs.publication import Batch
from headrace.sched.epochs.repair import complete
from headrace.sched.epochs.slots import TrainerView
from headrace.sched.ledger_layout import Dims, Words


class TrainerLedger(TrainerView):
    """The trainer's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lock: AbstractContextManager[Any] | None = None) -> None:
        """``words`` is shared; nothing is written until a method is called. ``lock`` excludes the others."""
        super().__init__(words, dims)
        self.lock = nullcontext() if lock is None else lock

    @property
    def limit(self) -> int:
        """Lanes that may take tickets at once."""
        return self.w[W.LIMIT]

    @property
    def failures(self) -> int:
        """Tickets that failed in this generation, or a few more."""
        return self.w[W.FAILURES]

    @property
    def logged(self) -> int:
        """Samples of extraordinary cost so far."""
        return self.w[W.LOGGED]

    @property
    def queued(self) -> int:
        """Tickets that wait to be made before all others."""
        return self.w[W.RETRIES]

    @property
    def is_taken(self) -> bool:
        """True if no ticket waits to be taken. Without the lock: a hint."""
        return not self.w[W.RETRIES] and E.at_cursor(self.w[W.CURSOR])[0] >= self.w[W.TAIL]

    @property
    def is_resolved(self) -> bool:
        """True if every ticket of the epoch being delivered is done or failed."""
        return self.w[W.UNRESOLVED] == 0

    @property
    def is_local(self) -> bool:
        """True if each batch is made by one worker."""
        return bool(self.w[W.LOCAL])

    def stay_local(self) -> None:
        """Note that samples cannot travel between workers. Follows a ``reset``."""
        self.w[W.LOCAL] = 1

    def seed(self, seed: int) -> None:
        """Set the seed from which, with the epoch and the index, a sample's random numbers come."""
        self.w[W.SEED] = seed

    def reset(self, *, free_order: bool, limit: int = 1 << 30, displacement: int = 0, epoch: int = 0) -> None:
        """Begin a new epoch; whatever lanes still do for an older one will be dropped when they come back with it.

        ``limit``: lanes that may take tickets at once. ``displacement``: batches by which a sample may be overtaken.
        """
        w = self.w
        w[W.LIMIT], w[W.DISPLACEMENT], w[W.OLDEST] = limit, displacement, 0
        w[W.GENERATION] += 1
        w[W.EPOCH] = epoch
        w[W.FREE_ORDER] = int(free_order)
        for word in (W.TAIL, W.CURSOR, W.FILL_TAIL, W.FILL_CURSOR, W.RETRIES, W.HOLES):
            w[word] = 0
        for word in (W.UNRESOLVED, W.AWAITED, W.FAILURES, W.LOCAL):
            w[word] = 0

    def write_indices(self, group: int, indices: "array[int]") -> None:
        """Write the indices of a group that is not published yet."""
        first = self.dims.index(group)
        self.w[first : first + len(indices)] = memoryview(indices)

    def publish(self, batch: Batch, lanes: int, ahead: Sequence[int] = (), *, relaxed: bool = False) -> list[int]:
        """Hand out a batch whose indices (and the bytes of its blob) were written; the lanes to wake. Takes the lock.

        ``ahead``: positions to be made before everything that waits. ``relaxed``: there is time, so no more lanes than
        groups wait are woken.
        """
        self.dims.check_slot(batch.slot)
        self.dims.check_group(batch.group)
        self.dims.check_span("rows", 0, batch.expected)
        self.dims.check_span("tickets", 0, batch.count)
        self.dims.check_lanes(lanes)
        for position in ahead:
            W.check("position", position, batch.count)
        with self.lock:
            return publication.publish(self, batch, lanes, ahead, relaxed)

    def publish_empty(self, slot: int, group: int, lanes: int) -> list[int]:
        """A batch of no samples: nothing to make, only to collate; the lanes to wake. Takes the lock."""
        with self.lock:
            return publication.publish_empty(self, slot, group, lanes)

    def is_busy(self, slot: int, lanes: int) -> bool:
        """True if a lane may be writing to a free slot, for whatever epoch. Without the lock: none begins to."""
        self.dims.check_slot(slot)
        self.dims.check_lanes(lanes)
        w, lane, it = self.w, self.dims.lane, E.some(slot)
        return any(it in (w[lane(n) + W.L_SLOT], w[lane(n) + W.L_COLLATE]) for n in range(lanes))

    def look(self, slots: Sequence[int]) -> int | None:
        """The first slot that is ready; None once lanes know that the trainer waits for these. Takes the lock."""
        for slot in slots:
            self.dims.check_slot(slot)
        with self.lock:
            for slot in slots:
                if self.is_ready(slot):
                    return slot
            self.w[W.AWAITED] = E.some(slots[0]) if len(slots) == 1 else W.ANY
            return None

    def wake(self, lanes: int) -> list[int]:
        """The lanes that sleep and have a place: see ``rouse``. Takes the lock."""
        self.dims.check_lanes(lanes)
        with self.lock:
            return rouse(self, lanes)

    def stragglers(self, since: int) -> tuple[int, list[int]]:
        """The number of samples of extraordinary cost that were logged, and the indices of those after the first
        ``since``.
        """
        w = self.w
        first = max(since, w[W.LOGGED] - W.LOG_SIZE)
        return w[W.LOGGED], [w[W.LOG + number % W.LOG_SIZE] for number in range(first, w[W.LOGGED])]

    def present(self, slot: int) -> list[int]:
        """Rows of a complete slot that hold a sample."""
        expected = self.expected(slot)
        if self.w[self.dims.slot(slot) + W.S_DONE] == expected and not self.w[W.FAILURES]:
            return list(range(expected))
        return super().present(slot)

    def tickets(self, slot: int) -> list[int]:
        """The tickets in a slot's rows, row by row: a ``pair`` of group and position for each that holds a sample."""
        first = self.dims.row_ticket(slot)
        rows = self.w[first : first + self.w[self.dims.slot(slot) + W.S_EXPECTED]]
        return E.tickets(rows.tolist())

    def failed(self, groups: Iterable[int]) -> list[tuple[int, int, int]]:
        """(group, position, blob offset) of the tickets that failed, in the order given."""
        w, found = self.w, []
        for group in groups:
            tickets = self.dims.ticket(group)
            for position in range(w[self.dims.group(group) + W.G_COUNT]):
                word = w[tickets + position]
                if E.state(word) == W.FAILED:
                    found.append((group, position, E.blob(word)))
        return found

    def close(self, slot: int) -> bool:
        """Close a slot to which no more rows will come: it is complete as it is. False when it is empty."""
        w, at = self.w, self.dims.slot(slot)
        if w[at + W.S_DONE] == 0:
            w[at + W.S_STATUS] = W.IDLE
            return False
        if w[at + W.S_STATUS] == W.FILLING:
            complete(self, slot)
        return True
