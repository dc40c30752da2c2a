"""The shared memory as a worker uses it: its ledger, the slots it writes to, the layouts it has met."""

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SlabError
from headrace.engine.memory import pickled
from headrace.engine.memory.layout import ALIGN, Layout
from headrace.engine.memory.layouts import Layouts
from headrace.engine.memory.lock import Mutex
from headrace.engine.memory.reservation import BLOB
from headrace.engine.worker import failure
from headrace.engine.worker.startup.job import Job
from headrace.sched import native_ledger
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.lanes.lane_messages import File, RowSpan
from headrace.sched.lanes.streamlane import StreamLaneMachine
from headrace.sched.ledger_story import LaneStory
from headrace.sched.resume import Resume

NO_ROOM = BLOB - 4096
"""Where in a group's blob the error stands that is filed for those that find no room."""
HALF = NO_ROOM // 2
"""Up to here a group's errors may be as large as they are; the rest of the blob is shared out among its samples."""
ERROR_ROOM = 64 << 10
"""Bytes at the end of a slot that only an error may take: whatever filled the slot, it can be said."""
VIEWS = 1024
"""Slots' views of one layout that are remembered."""


class WorkerMemory:
    """The access of one worker to the run's memory."""

    def __init__(self, job: Job) -> None:
        """Maps nothing new: the reservation came with the job."""
        self.reservation = memory = job.wiring.memory
        self.lock, self.bell, self.trainer = job.wiring.lock, job.bell, job.wiring.trainer
        kind = native_ledger.NativeLane if isinstance(self.lock, Mutex) else LaneLedger
        self.ledger = kind(memory.words, memory.dims, job.lane, self.lock)
        self.facts = self.ledger.facts
        self.layouts = Layouts(memory)
        self.number = job.lane
        self._base = np.frombuffer(memory.map, np.uint8).ctypes.data
        self._views: dict[tuple[int, int, int], list[Any]] = {}
        self._collating = -1
        self._view: memoryview | None = None  # of the slot being collated
        self._resting: list[weakref.ref[Any]] = []  # what user code kept of slots
        self._cautious = False  # user code keeps what it was given: give it memory of its own

    def stream(self, resume: Resume) -> StreamLaneMachine:
        """The worker's side of an iterable dataset's ledger."""
        memory = self.reservation
        return StreamLaneMachine(memory.words, memory.dims, self.number, self.lock, resume=resume, story=self.story())

    def story(self) -> LaneStory | None:
        """The story to which this worker tells what it does, if one is kept."""
        memory = self.reservation
        return LaneStory(memory.words, memory.dims, self.number, time.monotonic_ns) if memory.dims.told else None

    def views(self, slot: int, number: int, layout: Layout) -> list[Any]:
        """The leaf arrays of a slot: tensors for tensor leaves, numpy arrays for the rest."""
        rows = self.facts.expected(slot)
        key = slot, number, rows
        if key not in self._views:
            offsets, size = layout.plan(rows)
            self.check_room(size)
            base = self.reservation.slot(slot)
            made: list[Any] = []
            for leaf, offset in zip(layout.leaves, offsets, strict=True):
                raw = self.reservation.bytes[base + offset : base + offset + leaf.row_bytes * rows]
                if leaf.row_bytes == 0:  # no bytes are no buffer to torch
                    tensor = torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
                else:
                    tensor = torch.frombuffer(raw, dtype=leaf.dtype).view(rows, *leaf.shape)
                made.append(tensor if leaf.kind is torch.Tensor else tensor.numpy())
            if len(self._views) >= VIEWS:  # shapes that vary so much hardly come again: which go first is all the same
                self._views.clear()
            self._views[key] = made
        return self._views[key]

    def check_room(self, size: int) -> None:
        """A batch must fit its slot."""
        if size > self.reservation.slot_bytes - ERROR_ROOM:
            most = self.reservation.slot_bytes >> 20
            msg = f"a batch of {size >> 20} MiB is larger than the {most} MiB a batch may have"
            raise SlabError(msg + self.reservation.shortage)

    def write_rows(self, rows: RowSpan, layout: Layout, columns: list[Sequence[Any]]) -> None:
        """Samples, leaf by leaf, into their rows; ``layout`` is that of ``rows``."""
        first, end = rows.first, rows.first + rows.count
        views = self.views(rows.slot, rows.layout, layout)
        if not self.layouts.is_told(rows.slot, rows.layout):
            described = self.layouts.description(layout)
            with self.lock:
                self.layouts.tell(rows.slot, rows.layout, described)
        for view, values in zip(views, columns, strict=True):
            if isinstance(view, torch.Tensor):
                if rows.count == 1:
                    view[first].copy_(values[0])
                else:
                    torch.stack(list(values), 0, out=view[first:end])
            else:
                view[first:end] = values

    def write_object(self, slot: int, encoded: pickled.EncodedObject) -> int:
        """An encoded object into a slot's free space; its offset there."""
        offset = self.ledger.reserve(slot, encoded.size, self.reservation.slot_bytes - ERROR_ROOM)
        self.check_room(offset + encoded.size)
        at = self.reservation.slot(slot) + offset
        encoded.write(self.reservation.bytes[at : at + encoded.size])
        return offset

    def write_error(self, slot: int, packed: bytes) -> tuple[int, int]:
        """The error that a batch is instead, into its slot; (offset, size)."""
        encoded = pickled.EncodedObject(packed)
        offset = self.ledger.reserve(slot, encoded.size)
        if offset + encoded.size > self.reservation.slot_bytes:
            encoded = pickled.EncodedObject(failure.within(packed, ERROR_ROOM - 4096))
            offset = self.reservation.slot_bytes - ERROR_ROOM
        at = self.reservation.slot(slot) + offset
        encoded.write(self.reservation.bytes[at : at + encoded.size])
        return offset, encoded.size

    def filing(self, group: int, packed: bytes) -> File:
        """A function that files an error of a group's sample, later and with the lock held; it is cut to size now."""
        return partial(self._file_error, group, failure.within(packed, self._error_room(group)))

    def _error_room(self, group: int) -> int:
        """Bytes that the next error of a group may have, so that all its samples can fail and each can say why."""
        if self.facts.blob_used(group) + 8 + failure.MOST <= HALF:
            return failure.MOST
        return max(failure.LEAST, HALF // max(1, self.facts.group(group).count) - 8)

    def _file_error(self, group: int, packed: bytes) -> int:
        """File an error in its group's blob now, and return where it stands."""
        packed = failure.within(packed, self._error_room(group))  # others may have filed theirs meanwhile
        blob, offset = self.reservation.blob(group), self.facts.blob_used(group)
        size = 8 + len(packed)
        if offset + size <= NO_ROOM:
            self.facts.use_blob(group, offset + size)
        elif offset == BLOB:
            return NO_ROOM
        else:
            packed, offset = failure.no_room(f"in DataLoader worker process {self.number}"), NO_ROOM
        self.reservation.write_sized(blob + offset, packed)
        if offset == NO_ROOM:  # full from here on: whatever else fails refers to this one
            self.facts.use_blob(group, BLOB)
        return offset

    def read_sample(self, slot: int, row: int) -> Any:
        """A sample another worker may have put into a slot; its tensors are views."""
        offset = self.facts.object_at(slot, row)
        if offset >= 0:
            return pickled.decode(self._seen(slot)[offset:], self._seen(slot))
        number = self.facts.layout(slot)
        layout, values = self.layouts.at(slot, number), []
        views = self.views(slot, number, layout)
        for leaf, view in zip(layout.leaves, views, strict=True):
            if leaf.kind is np.ndarray:
                values.append(np.array(view[row]))
            else:
                values.append(view[row].clone() if leaf.kind is torch.Tensor else leaf.kind(view[row]))
        return layout.sample(values)

    def _seen(self, slot: int) -> memoryview:
        """A slot's memory as user code may see it."""
        at = self.reservation.slot(slot)
        if self._cautious:
            used = self.facts.used(slot)
            copied: Any = np.array(self.reservation.bytes[at : at + used])
            return memoryview(copied)
        return self.reservation.bytes[at : at + self.reservation.slot_bytes] if self._view is None else self._view

    @contextmanager
    def collating(self, slot: int) -> Iterator[None]:
        """A block in which ``allocate`` and ``locate`` speak of this slot; nothing of it must be referred to
        afterwards.

        If user code does keep something, the slot rests until it is let go, and what follows gets memory of its own.
        """
        owner: Any = np.frombuffer(
            self.reservation.map, np.uint8, self.reservation.slot_bytes, self.reservation.slot(slot)
        )
        self._collating, self._view = slot, memoryview(owner)
        kept, let_go = weakref.ref(owner), self.facts.let_go
        del owner  # only views keep it from here on: if it is there afterwards, user code has one
        try:
            yield
        finally:
            self._collating, self._view = -1, None
            owner = kept()
            if owner is not None:
                self._cautious = True
                self.facts.keep(slot, self.number)
                self._resting.append(weakref.ref(owner, lambda _: let_go(slot)))

    def allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory in the slot being collated; None outside collation or where it would not fit."""
        size = dtype.itemsize * shape.numel()
        if self._view is None or size == 0 or self._cautious:
            return None
        padded = -(-size // ALIGN) * ALIGN
        most = self.reservation.slot_bytes - ERROR_ROOM
        offset = self.ledger.reserve(self._collating, padded, most)
        if offset + padded > most:
            return None
        return torch.frombuffer(self._view[offset : offset + size], dtype=dtype).view(shape)

    def locate(self, tensor: torch.Tensor) -> int | None:
        """The offset of a tensor in the slot being collated, if it lies there."""
        if tensor.layout is not torch.strided:
            return None
        offset = tensor.data_ptr() - self._base - self.reservation.slot(self._collating)
        return offset if 0 <= offset < self.reservation.slot_bytes else None
