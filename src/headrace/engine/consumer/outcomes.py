"""What becomes of a slot that is complete, or of a sample that failed: a batch or an error, in a hand."""

from collections.abc import Iterable
from typing import Any

from headrace.core.errors import BatchNotSendable, WorkerDied
from headrace.engine.consumer.delivery import Delivery
from headrace.engine.consumer.hand import Hand
from headrace.engine.consumer.service import Service
from headrace.engine.consumer.tracing import Delivered
from headrace.engine.memory.reservation import Reservation
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.engine.worker.fitting import LeftOut
from headrace.sched.acts import Failed, ReadySlot
from headrace.sched.book import Settled
from headrace.sched.consumer import ConsumerLedger

_COLLATE_DIED = "DataLoader worker exited unexpectedly, for the second time, while it ran collate_fn on the same batch"


class Outcomes:
    """Those of one run. ``epitaph``: how the last worker that died did, for samples that took two with them."""

    epitaph = "DataLoader worker exited unexpectedly"

    def __init__(self, memory: Reservation, slots: Slots, ledger: ConsumerLedger, service: Service) -> None:
        """``service`` says what becomes of those that failed."""
        self._memory, self._slots, self._ledger = memory, slots, ledger
        self._errors, self._tally = service.errors, service.tally
        self._delivery = Delivery(memory, slots)

    def batch(self, ready: ReadySlot, others: int, outstanding: int) -> Hand[Settled] | None:
        """A complete slot's, or why there is none; None when nothing of it is left.

        ``others``: batches that are ready besides, of so many ``outstanding``.
        """
        slot, _, rows, expected, settled, failed = ready
        ledger, slots, tally, delivery = self._ledger, self._slots, self._tally, self._delivery
        error = self._failure(ready) if failed or ledger.is_error(slot) else None
        if error is not None:
            slots.release(slot)
            return Hand(error, settled, Delivered(0, 0, others, outstanding))
        number, count = ledger.number(slot), len(rows)
        if not count and expected:
            slots.release(slot)
            return None
        made = self._made(slot, rows if count < expected else None)
        if isinstance(made, tuple) and isinstance(made[0], LeftOut):
            left, made = made[0], (made[0].batch,)
            count = left.samples
            for index, why in left.unfit:
                error = self._errors.judged(index, why, why)
                if error is not None:
                    return Hand(error, settled, Delivered(0, 0, others, outstanding))
        self._errors.passed(count)
        tally.samples += count
        if delivery.copied:
            tally.copied_out += delivery.copied
            delivery.copied = 0
        tally.slab_bytes = max(tally.slab_bytes, slots.touched)
        return Hand(made, settled, Delivered(number, count, others, outstanding))

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

    def _failure(self, ready: ReadySlot) -> BaseException | None:
        """Batches as drawn: failures come out with the batch they belong to. Collation may fail in any."""
        for failed in ready.failed:
            error = self.judged(failed)
            if error is not None:
                return error
        if not self._ledger.is_error(ready.slot):
            return None
        found = self._delivery.error(ready.slot)
        return WorkerDied(_COLLATE_DIED) if found is None else found[0]

    def cannot_travel(self, failed: Iterable[Failed]) -> bool:
        """Whether one of them failed only because it cannot be sent to the worker that collates."""
        found = map(self._packed, failed)
        return any(packed is not None and failure.is_a(packed, BatchNotSendable) for packed in found)

    def _packed(self, failed: Failed) -> bytes | None:
        """What a sample left that failed, as the worker packed it; None where it took its worker with it."""
        if failed.took_worker:
            return None
        at = self._memory.blob(failed.group.number) + failed.blob
        size = int.from_bytes(self._memory.bytes[at : at + 8], "little")
        return bytes(self._memory.bytes[at + 8 : at + 8 + size])

    def judged(self, failed: Failed) -> BaseException | None:
        """What one failed sample raises; None where it is only counted."""
        packed, index = self._packed(failed), failed.group.indices[failed.position]
        if self._ledger.story is not None:
            self._ledger.story.judged(index, None if packed is None else failure.summary(packed))
        if packed is None:
            died = WorkerDied(f"{self.epitaph}. It was making sample {index!r}, for the second time")
            return self._errors.judged(index, died, died)
        raised, original, fatal = failure.unpack(packed)
        if fatal:
            return raised
        raised.add_note(f"headrace: sample {index!r}")
        return self._errors.judged(index, raised, original)
