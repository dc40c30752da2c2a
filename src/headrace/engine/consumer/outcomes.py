"""What becomes of a slot that is complete, or of a sample that failed: a batch or an error, in a hand."""

from collections.abc import Iterable
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.consumer.book import Book, Group, Settled
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.hand import Hand
from headrace.engine.consumer.pool import Pool
from headrace.engine.consumer.tally import Errors, Tally
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.words import NO_BLOB

_COLLATE_DIED = "DataLoader worker exited unexpectedly, for the second time, while it ran collate_fn on the same batch"


class Outcomes:
    """Those of one run. ``epitaph``: how the last worker that died did, for samples that took two with them."""

    epitaph = "DataLoader worker exited unexpectedly"

    def __init__(self, pool: Pool, slots: Slots, ledger: ConsumerLedger, errors: Errors, tally: Tally) -> None:
        """``errors`` says what becomes of those that failed."""
        self._pool, self._slots, self._ledger, self._errors, self._tally = pool, slots, ledger, errors, tally
        self._memory = pool.memory
        self._delivery = Delivery(pool.memory, slots)

    def batch(self, slot: int, group: Group | None, book: Book) -> Hand[Settled] | None:
        """A complete slot's, or why there is none; None when nothing of it is left. ``group``: where as drawn."""
        rows = self._ledger.present(slot)
        settled = self.settled(slot, rows, book) if group is None else [(group, set(range(len(group.indices))))]
        error = self._failure(slot, group)
        if error is not None:
            self._slots.release(slot)
            return Hand(error, settled, Delivered())
        expected, number = self._ledger.expected(slot), self._ledger.number(slot)
        if not rows and expected:
            book.settle(settled)
            self._slots.release(slot)
            return None
        made = self._made(slot, rows if len(rows) < expected else None)
        self._errors.passed(len(rows))
        self._tally.samples += len(rows)
        self._tally.copied_out += self._delivery.copied
        self._delivery.copied = 0
        self._tally.slab_bytes = max(self._tally.slab_bytes, self._slots.touched)
        return Hand(made, settled, Delivered(number, len(rows)))

    def _made(self, slot: int, keep: list[int] | None) -> tuple[Any] | Exception:
        """The batch, or why it cannot be had from what workers sent."""
        try:
            return (self._delivery.batch(slot, keep=keep),)
        except Exception as error:
            try:
                self._delivery.batch(slot, keep=keep)
            except Exception:  # noqa: BLE001  (so it is the batch's fault)
                return error
            raise  # a signal handler's, which had nothing to do with it

    def settled(self, slot: int, rows: Iterable[int], book: Book) -> Settled:
        """What the samples in a slot's rows are."""
        tickets = self._ledger.tickets(slot)
        return book.find(tickets[row] for row in rows)

    def _failure(self, slot: int, group: Group | None) -> BaseException | None:
        """Batches as drawn: failures come out with the batch they belong to. Collation may fail in any."""
        if group is not None and self._ledger.failures:
            with self._pool.section():
                failed = self._ledger.failed([group.number])
            for _, position, blob in failed:
                error = self.judged(group, position, blob)
                if error is not None:
                    return error
        if not self._ledger.is_error(slot):
            return None
        found = self._delivery.error(slot)
        return WorkerDied(_COLLATE_DIED) if found is None else found[0]

    def read(self, group: Group, blob: int) -> tuple[BaseException, BaseException | None, bool] | None:
        """What a sample left that failed; None where it took its worker with it."""
        packed = self.packed(group, blob)
        return None if packed is None else failure.unpack(packed)

    def packed(self, group: Group, blob: int) -> bytes | None:
        """The same, as the worker packed it."""
        if blob == NO_BLOB:
            return None
        at = self._memory.blob(group.number) + blob
        size = int.from_bytes(self._memory.bytes[at : at + 8], "little")
        return bytes(self._memory.bytes[at + 8 : at + 8 + size])

    def judged(self, group: Group, position: int, blob: int) -> BaseException | None:
        """What one failed sample raises; None where it is only counted."""
        error = self.read(group, blob)
        index = group.indices[position]
        if error is None:
            died = WorkerDied(f"{self.epitaph}. It was making sample {index!r}, for the second time")
            return self._errors.judged(index, died, died)
        raised, original, fatal = error
        if fatal:
            return raised
        raised.add_note(f"headrace: sample {index!r}")
        return self._errors.judged(index, raised, original)
