"""Who does the pixels: the host in plain torch, or a CUDA device on a stream and in memory of its own."""

import importlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.core.stats import DeviceUse
from headrace.engine.device.containers import mapped, tensors
from headrace.engine.device.rendering import Renderer, Work
from headrace.engine.pixels import decoders, twin
from headrace.engine.pixels import view as V
from headrace.engine.pixels.bundle import Bundle, Storing
from headrace.engine.pixels.decoders import Decoded, Together
from headrace.engine.pixels.prepared import Prepared, first_bundle

LOOK = 32
"""After how many batches it is looked how much memory they take."""
HELD = 2
"""Batches whose decoded pictures may be on the device at once: one that is decoded, one that is rendered."""


class _Pictures:
    """What a bundle holds, as tensors on a device."""

    def __init__(self, bundle: Bundle, device: torch.device, together: Together) -> None:
        self._bundle, self._device, self._together = bundle, device, together
        self.sizes = [(int(h), int(w)) for h, w in bundle.rows[:, V.HEIGHT : V.WIDTH + 1].tolist()]
        self._places: list[list[int]] = bundle.places.tolist()
        self.again = False

    def parts(self, memory: int) -> Iterator[range]:
        """Pictures one after the other, as many at once as fit into ``memory`` bytes, one at least."""
        first, size = 0, 0
        for number, (height, width) in enumerate(self.sizes):
            if size + 3 * height * width > memory and number > first:
                yield range(first, number)
                first, size = number, 0
            size += 3 * height * width
        yield range(first, len(self.sizes))

    def decoded(self, part: range) -> list[Decoded]:
        """Levels of the pictures of a part, or what is wrong with them."""
        found: dict[int, Decoded] = {}
        files = [number for number in part if self._places[number][2] == Storing.JPEG]
        sizes = [self.sizes[number] for number in files]
        made, again = decoders.decoded([self._bytes(number) for number in files], sizes, self._together, self._device)
        self.again = self.again or again
        found.update(zip(files, made, strict=True))
        for number in part:
            if number not in found:
                found[number] = self._levels(number)
        return [found[number] for number in part]

    def masks(self, part: range, dtype: np.dtype[Any]) -> list[torch.Tensor]:
        """Of the pictures of a part."""
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        return [self._sent(number, 3).view(kind).view(self.sizes[number]) for number in part]

    @property
    def by_workers(self) -> int:
        return sum(place[2] != Storing.JPEG for place in self._places)

    def _bytes(self, number: int, at: int = 0) -> torch.Tensor:
        start, size = self._places[number][at : at + 2]
        return self._bundle.data[start : start + size]

    def _sent(self, number: int, at: int = 0) -> torch.Tensor:
        return self._bytes(number, at).to(self._device, non_blocking=True)

    def _levels(self, number: int) -> torch.Tensor:
        height, width = self.sizes[number]
        flat = self._sent(number)
        if self._places[number][2] == Storing.PLANES:
            return flat.view(3, height, width)
        return flat.view(height, width, 3).permute(2, 0, 1)


def _usable(pictures: list[Decoded], part: range, sizes: list[tuple[int, int]], work: Work) -> list[torch.Tensor]:
    """Where one could not be decoded, nothing stands, of its size and without memory; its neighbours stay."""
    found: list[torch.Tensor] = []
    for number, picture in zip(part, pictures, strict=True):
        if isinstance(picture, Exception):
            work.failed.append((number, picture))
            device = work.out.device
            found.append(torch.zeros((), dtype=torch.uint8, device=device).expand(3, *sizes[number]))
        else:
            found.append(picture)
    return found


def _allocate(work: Work, dataset: Prepared, device: torch.device) -> None:
    """Memory for what is made of a batch, of the current stream."""
    bundle, recipe, options = work.bundle, dataset.recipe, dataset.options
    assert bundle is not None
    dtype = options.dtype if options.dtype is not None and recipe.dtype.is_floating_point else recipe.dtype
    shape = (len(bundle.indices), recipe.channels, *bundle.shape)
    work.out = torch.empty(shape, dtype=dtype, device=device, memory_format=options.memory_format)
    if bundle.mask is not None:
        kind = torch.from_numpy(np.empty(0, bundle.mask)).dtype
        work.masks = torch.empty((shape[0], *shape[2:]), dtype=kind, device=device)


class Host:
    """On the CPU: Pillow and plain torch."""

    def __init__(self, dataset: Prepared) -> None:
        """Holds nothing."""
        self._dataset, self._device = dataset, torch.device("cpu")

    def begin(self, bundle: Bundle) -> Work:
        """See ``Renderer``."""
        return Work(bundle, None)

    def prepare(self) -> None:
        """See ``Renderer``: nothing."""

    def run(self, work: Work) -> None:
        """See ``Renderer``."""
        bundle, recipe = work.bundle, self._dataset.recipe
        assert bundle is not None
        _allocate(work, self._dataset, self._device)
        work.rest = mapped((bundle.rest, bundle.boxes), torch.clone)
        pictures = _Pictures(bundle, self._device, decoders.on_host)
        began, most = time.perf_counter(), 0
        decoding = 0.0
        for part in pictures.parts(self._dataset.options.memory):
            start = time.perf_counter()
            usable = _usable(pictures.decoded(part), part, pictures.sizes, work)
            decoding += time.perf_counter() - start
            here = slice(part.start, part.stop)
            twin.render(usable, bundle.rows[here], recipe, work.out[here])
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                twin.nearest(masks, bundle.rows[here], recipe.before, recipe.after, work.masks[here])
            most = max(most, sum(3 * height * width for height, width in pictures.sizes[here]))
        work.use = DeviceUse(
            batches=1,
            pictures=len(pictures.sizes),
            by_workers=pictures.by_workers,
            one_by_one=int(pictures.again),
            decode_seconds=decoding,
            pixels_seconds=time.perf_counter() - began - decoding,
            peak_bytes=most,
        )

    def hand_over(self, work: Work) -> None:
        """See ``Renderer``: it is there."""

    def reached(self, work: Work) -> bool:
        """See ``Renderer``."""
        return True

    def took(self, work: Work) -> tuple[int, int] | None:
        """See ``Renderer``."""
        return int(work.use.decode_seconds * 1e9), int(work.use.pixels_seconds * 1e9)

    def release(self, work: Work) -> None:
        """See ``Renderer``."""

    def finish(self) -> None:
        """See ``Renderer``."""


class CudaRenderer:
    """On a device. Its decoders do not wait for streams: they are given memory that nothing else can be using.

    That is a pool of its own, from which this thread alone allocates; and what a batch had of it is given back when the
    device has done that batch, not before. What it makes lies in memory of the consumer's stream: it is allocated for
    that stream, which is waited for before it is written to, as in ``Cuda.copy``.
    """

    def __init__(self, dataset: Prepared, device: torch.device) -> None:
        """Takes nothing from the device yet."""
        index: int | None = device.index
        self._dataset = dataset
        self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._cuda: Any = torch.cuda
        self._together = decoders.on_cuda(self._device)  # says what is missing, if something is
        self._launches = importlib.import_module("headrace.engine.pixels.launches")  # Triton comes with torch's CUDA
        self._first = first_bundle(dataset)
        self._stream: Any = None
        self._pool: Any = None
        self._events: list[Any] = []  # that were used and can be again
        self._held: deque[Work] = deque()
        self._batches = self._reserved = 0
        self._spent = 0.0, 0.0  # of batches that are done and not told

    def begin(self, bundle: Bundle) -> Work:
        """See ``Renderer``."""
        return Work(bundle, self._cuda.current_stream(self._device))

    def prepare(self) -> None:
        """See ``Renderer``: the decoder, the kernels as they will be called, the first memory."""
        if self._pool is not None:
            return
        self._stream, self._pool = self._cuda.Stream(self._device), self._cuda.MemPool()
        first, self._first = self._first, None
        if first is not None:
            try:
                self.run(Work(first, self._stream))
                self._let_go()
            finally:
                self._held.clear()
                self._batches, self._spent = 0, (0.0, 0.0)

    def run(self, work: Work) -> None:
        """See ``Renderer``."""
        if self._pool is None:
            self._stream, self._pool = self._cuda.Stream(self._device), self._cuda.MemPool()
        self._make_room()
        bundle = work.bundle
        assert bundle is not None
        with self._cuda.device(self._device):
            work.asked, work.began, work.decoded, work.started, work.done = (self._event() for _ in range(5))
            with self._cuda.stream(work.consumer):
                _allocate(work, self._dataset, self._device)
                work.rest = mapped((bundle.rest, bundle.boxes), self._like)
            work.asked.record(work.consumer)  # whatever used that memory before was given to this stream before
            with self._cuda.stream(self._stream), self._cuda.use_mem_pool(self._pool, self._device):
                self._held.append(work)
                self._make(work, bundle)

    def _event(self) -> Any:
        """One that is waited for asleep: waiting awake would take a core, and the driver's locks, from the trainer."""
        return self._events.pop() if self._events else self._cuda.Event(enable_timing=True, blocking=True)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=self._device)

    def _make_room(self) -> None:
        """For another batch. A pool that has grown in pieces is given back, once nothing of it is in use."""
        grown = self._reserved > 2 * self._dataset.options.memory
        while self._held and (grown or len(self._held) >= HELD):
            self._let_go()
        if grown:
            self._reserved, self._pool = 0, self._cuda.MemPool()

    def _make(self, work: Work, bundle: Bundle) -> None:
        recipe, stream, launches = self._dataset.recipe, self._stream, self._launches
        pictures = _Pictures(bundle, self._device, self._together)
        parts = list(pictures.parts(max(1, self._dataset.options.memory // HELD)))
        work.began.record(stream)
        for part in parts:
            usable = _usable(pictures.decoded(part), part, pictures.sizes, work)
            here = slice(part.start, part.stop)
            table = launches.table(usable, bundle.rows[here], work.out)
            if part.start == 0:
                work.decoded.record(stream)
                stream.wait_event(work.asked)
                for target, source in zip(tensors(work.rest), tensors((bundle.rest, bundle.boxes)), strict=True):
                    target.copy_(source, non_blocking=True)
                work.started.record(stream)
            work.kept += (usable, table, launches.render(table, recipe, work.out[here]))
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                kept = launches.nearest(masks, bundle.rows[here], recipe.before, recipe.after, work.masks[here])
                work.kept += (masks, kept)
            if part is not parts[-1]:
                work.done.record(stream)
                work.done.synchronize()
                work.kept.clear()
        work.done.record(stream)
        (decoding, pixels), self._spent = self._spent, (0.0, 0.0)
        work.use = DeviceUse(
            batches=1,
            pictures=len(pictures.sizes),
            by_workers=pictures.by_workers,
            one_by_one=int(pictures.again),
            decode_seconds=decoding,
            pixels_seconds=pixels,
            peak_bytes=self._measured(),
        )

    def _measured(self) -> int:
        """Bytes that the pool has of the device, looked at now and then."""
        if self._batches % LOOK == 0:
            self._reserved = sum(segment["total_size"] for segment in self._pool.snapshot())
        self._batches += 1
        return self._reserved

    def _let_go(self) -> None:
        """Of what the oldest batch had, once the device has done it."""
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
        if stream != work.consumer:
            for tensor in tensors((work.out, work.masks, work.rest)):
                tensor.record_stream(stream)

    def reached(self, work: Work) -> bool:
        """See ``Renderer``."""
        return bool(work.done.query())

    def took(self, work: Work) -> tuple[int, int]:
        """See ``Renderer``."""
        return (
            int(work.began.elapsed_time(work.decoded) * 1e6),
            int(work.started.elapsed_time(work.done) * 1e6),
        )

    def release(self, work: Work) -> None:
        """See ``Renderer``. Its events are used again when both threads have done with it."""
        try:
            work.users.pop()
        except IndexError:
            self._events += (work.asked, work.began, work.decoded, work.started, work.done)

    def finish(self) -> None:
        """See ``Renderer``. The thread has ended."""
        try:
            if self._stream is not None:
                self._stream.synchronize()
        finally:
            while self._held:
                work = self._held.popleft()
                work.kept.clear()
            self._stream = self._pool = None
            self._events.clear()
            self._batches = self._reserved = 0


def renderer(dataset: Prepared, device: torch.device) -> Renderer:
    """For batches on ``device``. Raises ``DeviceUnavailable`` where something is missing there."""
    return Host(dataset) if device.type == "cpu" else CudaRenderer(dataset, device)
