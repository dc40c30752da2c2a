"""From a finished slot to the user's batch: views where the memory may be lent, copies where it may not."""

from typing import Any

import torch

from headrace.engine.memory import codec
from headrace.engine.memory.layouts import Layouts
from headrace.engine.memory.reservation import Reservation
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.sched.slots import SlotView


class Delivery:
    """Makes batches out of slots. After ``batch`` the slot is the user's or free, never the caller's."""

    def __init__(self, memory: Reservation, slots: Slots) -> None:
        """Reads layouts as they appear."""
        self._slots, self._view = slots, SlotView(memory.words, memory.dims)
        self._layouts = Layouts(memory)
        self.copied = 0

    def error(self, slot: int) -> tuple[BaseException, BaseException | None, bool] | None:
        """The error a collate function left in a slot, if it did; None also when the worker died over it."""
        result = self._view.result(slot)
        if result < 0 or not self._view.is_error(slot):
            return None
        view = self._slots.borrow(slot)
        return failure.unpack(codec.decode(view[result:], view))

    def state(self, slot: int, offset: int) -> Any:
        """An object a stream left beside its batch."""
        view = self._slots.borrow(slot)
        return codec.decode(view[offset:], view)

    def batch(self, slot: int, *, keep: list[int] | None = None) -> Any:
        """The slot's batch; ``keep`` names the rows when some are missing."""
        lend = self._slots.spare()
        view = self._slots.lease(slot) if lend else self._slots.copied(slot)
        result = self._view.result(slot)
        made = codec.decode(view[result:], view) if result >= 0 else self._stacked(slot, view, keep)
        if not lend:
            self.copied += 1
            self._slots.release(slot)
        return made

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
