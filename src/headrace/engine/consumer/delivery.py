"""From a finished slot to the user's batch: views where the memory may be lent, copies where it may not."""

from typing import Any

import torch

from headrace.engine.device.pieces import crossing
from headrace.engine.device.rows import Block, Crossing, RowBlock
from headrace.engine.memory import codec
from headrace.engine.memory.layouts import REMEMBERED, Layouts
from headrace.engine.memory.reservation import Reservation
from headrace.engine.memory.slots import Slots
from headrace.engine.worker import failure
from headrace.sched.slots import SlotView

_Way = tuple[tuple[int, int], Crossing | None, tuple[torch.Tensor, ...]]
"""Layout and rows of a slot's last batch, how such batches cross to a device, and the memory to copy from."""


class Delivery:
    """Makes batches out of slots. After ``batch`` the slot is the user's or free, never the caller's."""

    def __init__(self, memory: Reservation, slots: Slots) -> None:
        """Reads layouts as they appear."""
        self._slots, self._view = slots, SlotView(memory.words, memory.dims)
        self._memory, self._layouts = memory, Layouts(memory)
        self._crossings: dict[tuple[int, int], Crossing | None] = {}  # by layout and rows
        self._ways: dict[int, _Way] = {}  # by slot
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
        """The slot's batch; ``keep`` names the rows when some are missing. For a device it may be a ``RowBlock``."""
        lend, result = self._slots.spare(), self._view.result(slot)
        if lend and result < 0 and keep is None and self._slots.is_registered:
            rows = self._rows(slot)
            if rows is not None:
                return rows
        view = self._slots.lease(slot) if lend else self._slots.copied(slot)
        made = codec.decode(view[result:], view) if result >= 0 else self._stacked(slot, view, keep)
        if not lend:
            self.copied += 1
            self._slots.release(slot)
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
            if len(self._crossings) >= REMEMBERED:
                del self._crossings[next(iter(self._crossings))]
            self._crossings[key] = crossing(self._layouts.at(slot, key[0]), key[1])
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
