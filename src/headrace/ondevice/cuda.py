"""Pixels on a CUDA device, on a stream and in memory of their own."""

import importlib
import time
from collections import deque
from typing import Any

import torch

from headrace.engine.memory.containers import tensors
from headrace.ondevice import pools
from headrace.ondevice.picture_steps import Pictures, allocate, usable, use
from headrace.ondevice.pixels import decoders
from headrace.ondevice.pixels.bundle import Bundle
from headrace.ondevice.pixels.prepared import Prepared
from headrace.ondevice.rendering import Work

LAUNCHES = "headrace.ondevice.pixels.launches"
"""Imported where there is a device only: it needs Triton, which comes with torch's CUDA."""
LOOK = 32
"""After how many batches it is looked how much memory they take."""
HELD = 2
"""Batches whose decoded pictures may be on the device at once: one that is decoded, one that is rendered."""


class CudaRenderer:
    """The renderer that runs on a device. Its decoders do not wait for streams: they are given memory that nothing
    else can be using.

    That is a pool of its own, from which this thread alone allocates; and what a batch had of it is given back when the
    device has done that batch, not before. What it makes lies in memory of the trainer's stream: it is allocated for
    that stream, which is waited for before it is written to, as in ``Cuda.copy``.
    """

    def __init__(self, dataset: Prepared, device: torch.device, first: Bundle | None) -> None:
        """Takes nothing from the device yet. ``device`` has a number; ``first``: see ``first_bundle``."""
        self._dataset, self._device, self._first = dataset, device, first
        self._cuda: Any = torch.cuda
        self._together = decoders.on_cuda(self._device)  # says what is missing, if something is
        self._launches = importlib.import_module(LAUNCHES)
        self._stream: Any = None
        self._pool: Any = None
        self._events: list[Any] = []  # that were used and can be again
        self._held: deque[Work] = deque()
        self._batches = self._reserved = 0
        self._spent = 0.0, 0.0  # of batches that are done and not told

    def begin(self, bundle: Bundle) -> Work:
        """See ``Renderer``. What is made has its memory from now on: who used that before gave this stream its work
        before, and what the stream is given later need not be waited for.
        """
        return self._begun(bundle, self._cuda.current_stream(self._device))

    def _begun(self, bundle: Bundle, trainer: Any) -> Work:
        """The work begun for ``trainer``, which is the current stream."""
        work = Work(bundle, trainer)
        allocate(work, self._dataset, self._device)
        work.asked, work.started, work.done = self._event(), self._event(), self._event()
        work.asked.record(trainer)
        return work

    def prepare(self) -> None:
        """See ``Renderer``: the decoder, the kernels as they will be called, the first memory."""
        if self._pool is None:
            self._stream, self._pool = self._cuda.Stream(self._device), self._cuda.MemPool()
        first, self._first = self._first, None
        if first is not None:
            try:
                with self._cuda.device(self._device), self._cuda.stream(self._stream):
                    work = self._begun(first, self._stream)
                self.run(work)
                self._let_go()
            finally:
                self._held.clear()
                self._batches, self._spent = 0, (0.0, 0.0)

    def run(self, work: Work) -> None:
        """See ``Renderer``."""
        self._make_room()
        bundle = work.bundle
        assert bundle is not None
        with (
            self._cuda.device(self._device),
            self._cuda.stream(self._stream),
            pools.used(self._pool, self._device, self._cuda),
        ):
            self._held.append(work)
            self._make(work, bundle)

    def _event(self) -> Any:
        """An event that is waited for asleep: waiting awake would take a core, and the driver's locks, from the
        trainer.
        """
        return self._events.pop() if self._events else self._cuda.Event(enable_timing=True, blocking=True)

    def _make_room(self) -> None:
        """Make room for another batch. A pool that has grown in pieces is given back, once nothing of it is in use."""
        grown = self._reserved > 2 * self._dataset.options.memory
        while self._held and (grown or len(self._held) >= HELD):
            self._let_go()
        if grown:
            pools.retire(self._pool)
            self._reserved, self._pool = 0, self._cuda.MemPool()

    def _make(self, work: Work, bundle: Bundle) -> None:
        recipe, stream, launches, device = self._dataset.recipe, self._stream, self._launches, self._device
        pictures, width = Pictures(bundle, device, self._together), bundle.shape[1]
        parts = pictures.parts(max(1, self._dataset.options.memory // HELD))
        for part in parts:
            began = time.perf_counter_ns()
            levels = usable(pictures.decoded(part), part, pictures.sizes, work)
            work.decoding += time.perf_counter_ns() - began
            here = slice(part.start, part.stop)
            table = launches.table(levels, pictures.rows[here], width, device)
            if part.start == 0:
                # What is made lies in the trainer's memory: whoever had that before must be done with it. Decoding
                # needs none of it, and has not waited.
                stream.wait_event(work.asked)
                for target, source in zip(tensors(work.rest), tensors((bundle.rest, bundle.boxes)), strict=True):
                    target.copy_(source, non_blocking=True)
                work.started.record(stream)
            out = work.out if len(parts) == 1 else work.out[here]
            work.kept += (levels, table, launches.render(table, recipe, out))
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                table = launches.table(masks, pictures.rows[here], width, device)
                launches.nearest(table, recipe.before, recipe.after, work.masks[here])
                work.kept += (masks, table)
            if part is not parts[-1]:
                work.done.record(stream)
                # The next part is decoded into this one's memory.
                work.done.synchronize()
                work.kept.clear()
        work.done.record(stream)
        (decoding, rendering), self._spent = self._spent, (0.0, 0.0)
        work.use = use(pictures, decoding, rendering, self._measured())

    def _measured(self) -> int:
        """Bytes that the pool has of the device, looked at now and then."""
        if self._batches % LOOK == 0:
            self._reserved = sum(segment["total_size"] for segment in self._pool.snapshot())
        self._batches += 1
        return self._reserved

    def _let_go(self) -> None:
        """Let go of the oldest batch's memory, once the device is done with it."""
        oldest = self._held[0]
        if oldest.error is None:
            oldest.done.synchronize()
            decoding, pixels = self.took(oldest)
            self._spent = self._spent[0] + decoding / 1e9, self._spent[1] + pixels / 1e9
        else:  # where it broke off is not known
            self._stream.synchronize()
        oldest.kept.clear()
        self._held.popleft()
        self.release(oldest)

    def hand_over(self, work: Work) -> None:
        """See ``Renderer``."""
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(work.done)
        if stream != work.trainer:
            for tensor in tensors((work.out, work.masks, work.rest)):
                tensor.record_stream(stream)

    def reached(self, work: Work) -> bool:
        """See ``Renderer``."""
        return bool(work.done.query())

    def took(self, work: Work) -> tuple[int, int]:
        """See ``Renderer``."""
        return work.decoding, int(work.started.elapsed_time(work.done) * 1e6)

    def release(self, work: Work) -> None:
        """See ``Renderer``. Its events are used again when both threads have done with it."""
        try:
            work.users.pop()  # one step of the interpreter's, so that exactly one of the two threads is the first
        except IndexError:
            self._events += (work.asked, work.started, work.done)

    def finish(self) -> None:
        """See ``Renderer``. The thread has ended."""
        try:
            if self._stream is not None:
                self._stream.synchronize()
        finally:
            while self._held:
                work = self._held.popleft()
                work.kept.clear()
            if self._pool is not None:
                pools.retire(self._pool)
            self._stream = self._pool = None
            self._events.clear()
            self._batches = self._reserved = 0
