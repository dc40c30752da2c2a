"""A worker's place at the shared memory: its ledger, the slots it writes to, the layouts it has met."""

import pickle
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SlabError
from headrace.engine.memory import codec
from headrace.engine.memory.layout import ALIGN, Layout, Unstackable, describe
from headrace.engine.memory.reservation import LAYOUTS, Reservation
from headrace.engine.worker.job import Job
from headrace.sched import words as W
from headrace.sched.lane import LaneLedger, Outcome, Rows


class Layouts:
    """The layouts of a run, numbered in the order in which they were met. Add only under the lock."""

    def __init__(self, memory: Reservation) -> None:
        """Reads those that are there when first asked."""
        self._memory, self._words = memory, memory.words
        self._known: list[Layout] = []
        self._numbers: dict[Any, int] = {}
        self._read = 0

    def __getitem__(self, number: int) -> Layout:
        """The layout with that number."""
        if number >= len(self._known):
            self._refresh()
        return self._known[number]

    def find(self, layout: Layout) -> int | None:
        """Its number, or None if nobody added it yet as far as this process knows."""
        return self._numbers.get(layout.shape)

    def add(self, layout: Layout) -> int | None:
        """Its number, now known to all; None when it cannot be shared. The caller holds the lock."""
        self._refresh()
        number = self._numbers.get(layout.shape)
        if number is not None:
            return number
        try:
            packed = pickle.dumps(layout.shape)
        except Exception:  # noqa: BLE001  (a local named tuple, say: such samples travel as objects, or fail there)
            return None
        at, end = self._words[W.LAYOUT_BYTES], self._words[W.LAYOUT_BYTES] + 8 + len(packed)
        if end > LAYOUTS:
            return None
        view = self._memory.bytes[self._memory.layouts : self._memory.layouts + LAYOUTS]
        view[at : at + 8] = len(packed).to_bytes(8, "little")
        view[at + 8 : end] = packed
        self._words[W.LAYOUT_BYTES] = end
        self._words[W.LAYOUTS] += 1
        self._refresh()
        return self._numbers[layout.shape]

    def _refresh(self) -> None:
        view = self._memory.bytes[self._memory.layouts : self._memory.layouts + LAYOUTS]
        while self._read < self._words[W.LAYOUT_BYTES]:
            size = int.from_bytes(view[self._read : self._read + 8], "little")
            packed = bytes(view[self._read + 8 : self._read + 8 + size])
            layout = Layout(pickle.loads(packed))  # noqa: S301  (written by a process of this run)
            self._numbers.setdefault(layout.shape, len(self._known))
            self._known.append(layout)
            self._read += 8 + size


class Desk:
    """One worker's access to the run's memory."""

    def __init__(self, job: Job) -> None:
        """Maps nothing new: the reservation came with the job."""
        memory = job.wiring.memory
        self.memory, self.words = memory, memory.words
        self.lock, self.bell, self.consumer = job.wiring.lock, job.bell, job.wiring.consumer
        self.ledger = LaneLedger(memory.words, memory.dims, job.lane)
        self.layouts = Layouts(memory)
        self.number, self.lane = job.lane, memory.dims.lane(job.lane)
        self._base = np.frombuffer(memory.map, np.uint8).ctypes.data
        self._views: dict[tuple[int, int, int], list[Any]] = {}
        self._slot0, self._slot_stride = memory.dims.slot0, memory.dims.slot_stride
        self._collating = -1
        self._view: memoryview | None = None  # of the slot being collated
        self._cautious = False  # user code keeps what it was given: give it memory of its own

    def account(self, operations: int) -> W.Words:
        """What so many operations of this lane cost: see ``headrace.plan.operations``."""
        first = self.memory.dims.account(self.number)
        return self.words[first : first + (operations + 1) * W.COSTS]

    def slot_word(self, slot: int, word: int) -> int:
        """One word of a slot's header."""
        return self.words[self._slot0 + slot * self._slot_stride + word]

    def layout_of(self, sample: Any) -> tuple[int, Layout] | None:
        """The sample's layout and its number; None when it must travel as an object."""
        try:
            layout = Layout(describe(sample))
        except Unstackable:
            return None
        if not layout.leaves:
            return None
        number = self.layouts.find(layout)
        if number is None:
            with self.lock:
                number = self.layouts.add(layout)
        return None if number is None else (number, self.layouts[number])

    def views(self, slot: int, number: int) -> list[Any]:
        """The leaf arrays of a slot: tensors for tensor leaves, numpy arrays for the rest."""
        rows = self.slot_word(slot, W.S_EXPECTED)
        key = slot, number, rows
        if key not in self._views:
            layout = self.layouts[number]
            offsets, size = layout.plan(rows)
            self.check_room(size)
            base = self.memory.slot(slot)
            made: list[Any] = []
            for leaf, offset in zip(layout.leaves, offsets, strict=True):
                raw = self.memory.bytes[base + offset : base + offset + leaf.row_bytes * rows]
                if leaf.row_bytes == 0:
                    tensor = torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
                else:
                    tensor = torch.frombuffer(raw, dtype=leaf.dtype).view(rows, *leaf.shape)
                made.append(tensor if leaf.copied_by_torch else tensor.numpy())
            self._views[key] = made
        return self._views[key]

    def check_room(self, size: int) -> None:
        """A batch must fit its slot."""
        if size > self.memory.slot_bytes:
            msg = f"a batch of {size >> 20} MiB is larger than the {self.memory.slot_bytes >> 20} MiB a batch may have"
            raise SlabError(msg + self.memory.shortage)

    def write_rows(self, rows: Rows, columns: list[Sequence[Any]]) -> None:
        """Samples, leaf by leaf, into their rows."""
        first, end = rows.first, rows.first + rows.count
        for view, values in zip(self.views(rows.slot, rows.layout), columns, strict=True):
            if isinstance(view, torch.Tensor):
                if rows.count == 1:
                    view[first].copy_(values[0])
                else:
                    torch.stack(list(values), 0, out=view[first:end])
            else:
                view[first:end] = values

    def write_object(self, slot: int, encoded: codec.Encoded) -> int:
        """An encoded object into a slot's free space; its offset there."""
        with self.lock:
            offset = self.ledger.reserve(slot, encoded.size)
        self.check_room(offset + encoded.size)
        at = self.memory.slot(slot) + offset
        encoded.write(self.memory.bytes[at : at + encoded.size])
        return offset

    def read_sample(self, slot: int, row: int) -> Any:
        """A sample another worker may have put into a slot; its tensors are views."""
        state = self.words[self.memory.dims.row_state(slot) + row]
        if state & 255 == W.AS_OBJECT:
            return codec.decode(self._seen(slot)[state >> 8 :], self._seen(slot))
        number = self.slot_word(slot, W.S_LAYOUT) - 2
        layout = self.layouts[number]
        values = []
        for leaf, view in zip(layout.leaves, self.views(slot, number), strict=True):
            if leaf.kind is np.ndarray:
                values.append(np.array(view[row]))
            else:
                values.append(view[row].clone() if leaf.kind is torch.Tensor else leaf.kind(view[row]))
        return layout.sample(values)

    def _seen(self, slot: int) -> memoryview:
        """A slot's memory as user code may see it."""
        at = self.memory.slot(slot)
        if self._cautious:
            used = self.slot_word(slot, W.S_BUMP)
            copied: Any = np.array(self.memory.bytes[at : at + used])
            return memoryview(copied)
        return self.memory.bytes[at : at + self.memory.slot_bytes] if self._view is None else self._view

    @contextmanager
    def collating(self, slot: int) -> Iterator[None]:
        """While open, ``allocate`` and ``locate`` speak of this slot; nothing of it must be referred to afterwards.

        If user code does keep something, the slot is given up and what follows gets memory of its own.
        """
        owner: Any = np.frombuffer(self.memory.map, np.uint8, self.memory.slot_bytes, self.memory.slot(slot))
        self._collating, self._view = slot, memoryview(owner)
        kept = weakref.ref(owner)
        del owner
        try:
            yield
        finally:
            self._collating, self._view = -1, None
            if kept() is not None:
                self._cautious = True
                self.words[self.memory.dims.slot(slot) + W.S_KEPT] = 1

    def allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory in the slot being collated; None outside collation or where it would not fit."""
        size = dtype.itemsize * shape.numel()
        if self._view is None or size == 0 or self._cautious:
            return None
        padded = -(-size // ALIGN) * ALIGN
        with self.lock:
            offset = self.ledger.reserve(self._collating, padded)
        if offset + padded > self.memory.slot_bytes:
            return None
        return torch.frombuffer(self._view[offset : offset + size], dtype=dtype).view(shape)

    def locate(self, tensor: torch.Tensor) -> int | None:
        """Where a tensor lies in the slot being collated, if it does."""
        if tensor.layout is not torch.strided:
            return None
        offset = tensor.data_ptr() - self._base - self.memory.slot(self._collating)
        return offset if 0 <= offset < self.memory.slot_bytes else None

    def report(self, outcome: Outcome) -> None:
        """Wake the consumer if it sleeps for this."""
        if outcome.wake:
            self.consumer.ring()
