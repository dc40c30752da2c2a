"""Delivery of a slot that is complete, or of a sample that failed: a batch or an error, in a hand.

A batch is views of the slot where the memory may be lent, copies where it may not.
"""

from collections.abc import Iterable
from typing import Any

import torch

from headrace.core.errors import BatchNotSendable, WorkerDied
from headrace.engine.memory import pickled
from headrace.engine.memory.layouts import Layouts, remember
from headrace.engine.memory.pieces import Block, Crossing, RowBlock, crossing
from headrace.engine.memory.reservation import Reservation
from headrace.engine.memory.slab import Slots
from headrace.engine.trainer.counters import Errors, LoaderCounters
from headrace.engine.worker import failure
from headrace.engine.worker.fitting import LeftOut
from headrace.sched.epochs.book import Settled
from headrace.sched.epochs.slots import SlotView
from headrace.sched.epochs.trainer_commands import Failed, ReadySlot
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.hand import Delivered, Hand

_Way = tuple[tuple[int, int], Crossing | None, tuple[torch.Tensor, ...]]
"""Layout and rows of a slot's last batch, how such batches cross to a device, and the memory to copy from."""


class Delivery:
    """Makes batches out of slots. After ``batch`` the slot is the user's or free, never the caller's."""

    def __init__(self, memory: Reservation, slots: Slots, counters: LoaderCounters) -> None:
        """Reads layouts as they appear. What batches took is counted."""
        self._slots, self._view, self._counters = slots, SlotView(memory.words, memory.dims), counters
        self._memory, self._layouts = memory, Layouts(memory)
        self._crossings: dict[tuple[int, int], Crossing | None] = {}  # by layout and rows
        self._ways: dict[int, _Way] = {}  # by slot

    def error(self, slot: int) -> tuple[BaseException, BaseException | None, bool] | None:
        """The error a collate function left in a slot, if it did; None also when the worker died over it."""
        result = self._view.result(slot)
        if result < 0 or not self._view.is_error(slot):
            return None
        view = self._slots.borrow(slot)
        return failure.unpack(pickled.decode(view[result:], view))

    def state(self, slot: int, offset: int) -> Any:
        """An object a stream left beside its batch."""
        view = self._slots.borrow(slot)
        return pickled.decode(view[offset:], view)

    def batch(self, slot: int, *, keep: list[int] | None = None) -> Any:
        """The slot's batch; ``keep`` names the rows when some are missing. For a device it may be a ``RowBlock``."""
        slots, counters, lend, result = self._slots, self._counters, self._slots.spare(), self._view.result(slot)
        plain = lend and result < 0 and keep is None and slots.is_registered
        made: Any = self._rows(slot) if plain else None
        if made is None:
            view = slots.lease(slot) if lend else slots.copied(slot)
            made = pickled.decode(view[result:], view) if result >= 0 else self._stacked(slot, view, keep)
        if not lend:
            counters.copied_out += 1
            slots.release(slot)
        counters.slab_bytes = max(counters.slab_bytes, slots.touched)
        return made

    def _rows(self, slot: int) -> RowBlock | None:
        """The batch as it lies there, lent; None where it has to be unpacked."""
        key = self._view.layout(slot), self._view.expected(slot)
        known = self._ways.get(slot)
        if known is None or known[0] != key:
            way = self._crossing(slot, key)
            sources = () if way is None else tuple(self._flat(slot, block) for block in way.blocks)
            known = self._ways[slot] = key, way, sources
        _, way, sources = known
        if way is None:
            return None
        rows = RowBlock(way, sources)
        self._slots.lend(slot, rows)
        return rows

    def _crossing(self, slot: int, key: tuple[int, int]) -> Crossing | None:
        if key not in self._crossings:
            remember(self._crossings, key, crossing(self._layouts.at(slot, key[0]), key[1]))
        return self._crossings[key]

    def _flat(self, slot: int, block: Block) -> torch.Tensor:
        at = self._memory.slot(slot) + block.start
        return torch.frombuffer(self._memory.map, dtype=block.dtype, count=block.count, offset=at)

    def _stacked(self, slot: int, view: memoryview, keep: list[int] | None) -> Any:
        rows = self._view.expected(slot)
        layout = self._layouts.at(slot, self._view.layout(slot))
        offsets, _ = layout.plan(rows)
        tensors = []
        for leaf, offset in zip(layout.leaves, offsets, strict=True):
            count = leaf.row_bytes * rows // leaf.dtype.itemsize
            if count == 0:
                tensor = torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
            else:
                flat = torch.frombuffer(view, dtype=leaf.dtype, count=count, offset=offset)
                tensor = flat.view(rows, *leaf.shape)
            tensors.append(tensor if keep is None else tensor[keep])
        return layout.batch(tensors)


_COLLATE_DIED = "DataLoader worker exited unexpectedly, for the second time, while it ran collate_fn on the same batch"


class Outcomes:
    """The outcomes of one run. ``last_death``: how the last worker that died did, for samples that took two with
    them.
    """

    last_death = "DataLoader worker exited unexpectedly"

    def __init__(
        self, memory: Reservation, slots: Slots, ledger: TrainerLedger, errors: Errors, counters: LoaderCounters
    ) -> None:
        """``errors`` says what becomes of those that failed."""
        self._memory, self._slots, self._ledger, self._errors = memory, slots, ledger, errors
        self._delivery = Delivery(memory, slots, counters)

    def batch(self, ready: ReadySlot, others: int, outstanding: int) -> Hand[Settled] | None:
        """A complete slot's, or why there is none; None when nothing of it is left.

        ``others``: batches that are ready besides, of so many ``outstanding``.
        """
        slot, _, rows, expected, settled, failed = ready
        ledger, slots = self._ledger, self._slots
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
            if not count:
                return None
        self._errors.passed(count)
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
        """The error of a batch, or None. Batches as drawn: failures come out with the batch they belong to.
        Collation may fail in any.
        """
        for failed in ready.failed:
            error = self.judged(failed)
            if error is not None:
                return error
        if not self._ledger.is_error(ready.slot):
            return None
        found = self._delivery.error(ready.slot)
        return WorkerDied(_COLLATE_DIED) if found is None else found[0]

    def cannot_travel(self, failed: Iterable[Failed]) -> bool:
        """True if one of the failed samples failed only because it cannot be sent to the worker that collates."""
        found = map(self._packed, failed)
        return any(packed is not None and failure.is_a(packed, BatchNotSendable) for packed in found)

    def _packed(self, failed: Failed) -> bytes | None:
        """The error that a failed sample left, as the worker packed it; None where it took its worker with it."""
        if failed.took_worker:
            return None
        at = self._memory.blob(failed.group.number) + failed.blob
        return bytes(self._memory.read_sized(at))

    def judged(self, failed: Failed) -> BaseException | None:
        """The error that one failed sample raises; None where it is only counted."""
        packed, index = self._packed(failed), failed.group.indices[failed.position]
        if self._ledger.story is not None:
            self._ledger.story.judged(index, None if packed is None else failure.summary(packed))
        if packed is None:
            died = WorkerDied(f"{self.last_death}. It was making sample {index!r}, for the second time")
            return self._errors.judged(index, died, died)
        raised, original, fatal = failure.unpack(packed)
        if fatal:
            return raised
        return self._errors.judged(index, raised, original)
