"""Who does the pixels: the host in plain torch, or a CUDA device on a stream and in memory of its own."""

import importlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
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

LAUNCHES = "headrace.engine.pixels.launches"
"""Imported where there is a device only: it needs Triton, which comes with torch's CUDA."""
LOOK = 32
"""After how many batches it is looked how much memory they take."""
HELD = 2
"""Batches whose decoded pictures may be on the device at once: one that is decoded, one that is rendered."""


class _Pictures:
    """What a bundle holds, as tensors on a device."""

    def __init__(self, bundle: Bundle, device: torch.device, together: Together) -> None:
        self._bundle, self._device, self._together = bundle, device, together
        self.rows: Any = bundle.rows.numpy()
        sizes = self.rows[:, V.HEIGHT : V.WIDTH + 1].astype(int)
        self.bytes: Any = 3 * sizes.prod(1)
        self.sizes: list[list[int]] = sizes.tolist()
        self._places: list[list[int]] = bundle.places.tolist()
        self.by_workers = sum(place[2] != Storing.JPEG for place in self._places)
        self.again = False

    def parts(self, memory: int) -> list[range]:
        """Pictures one after the other, as many at once as fit into ``memory`` bytes, one at least."""
        if self.bytes.sum() <= memory:
            return [range(len(self.sizes))]
        found, first, taken = [], 0, 0
        for number, size in enumerate(self.bytes.tolist()):
            if taken + size > memory and number > first:
                found.append(range(first, number))
                first, taken = number, 0
            taken += size
        return [*found, range(first, len(self.sizes))]

    def decoded(self, part: range) -> list[Decoded]:
        """Levels of the pictures of a part, or what is wrong with them."""
        if not self.by_workers:
            return self._of_files(list(part))
        files = [number for number in part if self._places[number][2] == Storing.JPEG]
        found = dict(zip(files, self._of_files(files), strict=True))
        return [found[number] if number in found else self._levels(number) for number in part]

    def masks(self, part: range, dtype: np.dtype[Any]) -> list[torch.Tensor]:
        """Of the pictures of a part."""
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        return [self._sent(number, 3).view(kind).view(self.sizes[number]) for number in part]

    def _of_files(self, numbers: list[int]) -> list[Decoded]:
        sizes = [self.sizes[number] for number in numbers]
        made, again = decoders.decoded(self._files(numbers), sizes, self._together, self._device)
        self.again = self.again or again
        return made

    def _files(self, numbers: list[int]) -> Sequence[torch.Tensor]:
        """Bytes of files; those of a batch of nothing else are cut in one go."""
        if len(numbers) == len(self._places) and self._bundle.mask is None:
            found: Sequence[torch.Tensor] = torch.split_with_sizes(
                self._bundle.data, [place[1] for place in self._places]
            )
            return found
        return [self._bytes(number) for number in numbers]

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


def _usable(decoded: list[Decoded], part: range, sizes: list[list[int]], work: Work) -> list[torch.Tensor]:
    """Where one could not be decoded, nothing stands, of its size and without memory; its neighbours stay."""
    for place, picture in enumerate(decoded):
        if isinstance(picture, Exception):
            number = part[place]
            work.failed.append((number, picture))
            decoded[place] = torch.zeros((), dtype=torch.uint8, device=work.out.device).expand(3, *sizes[number])
    return decoded  # type: ignore[return-value]


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
    work.rest = mapped((bundle.rest, bundle.boxes), partial(torch.empty_like, device=device))


def _use(pictures: _Pictures, decoding: float, rendering: float, most: int) -> DeviceUse:
    return DeviceUse(
        batches=1,
        pictures=len(pictures.sizes),
        by_workers=pictures.by_workers,
        one_by_one=int(pictures.again),
        decode_seconds=decoding,
        pixels_seconds=rendering,
        peak_bytes=most,
    )


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
        for target, source in zip(tensors(work.rest), tensors((bundle.rest, bundle.boxes)), strict=True):
            target.copy_(source)
        pictures = _Pictures(bundle, self._device, decoders.on_host)
        began, most = time.perf_counter_ns(), 0
        for part in pictures.parts(self._dataset.options.memory):
            start = time.perf_counter_ns()
            usable = _usable(pictures.decoded(part), part, pictures.sizes, work)
            work.decoding += time.perf_counter_ns() - start
            here = slice(part.start, part.stop)
            twin.render(usable, bundle.rows[here], recipe, work.out[here])
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                twin.nearest(masks, bundle.rows[here], recipe.before, recipe.after, work.masks[here])
            most = max(most, int(pictures.bytes[here].sum()))
        rendering = time.perf_counter_ns() - began - work.decoding
        work.use = _use(pictures, work.decoding / 1e9, rendering / 1e9, most)

    def hand_over(self, work: Work) -> None:
        """See ``Renderer``: it is there."""

    def reached(self, work: Work) -> bool:
        """See ``Renderer``."""
        return True

    def took(self, work: Work) -> tuple[int, int] | None:
        """See ``Renderer``."""
        assert work.use is not None  # it is done
        return work.decoding, int(work.use.pixels_seconds * 1e9)

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

    def _begun(self, bundle: Bundle, consumer: Any) -> Work:
        """For ``consumer``, which is the current stream."""
        work = Work(bundle, consumer)
        _allocate(work, self._dataset, self._device)
        work.asked, work.started, work.done = self._event(), self._event(), self._event()
        work.asked.record(consumer)
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
            self._cuda.use_mem_pool(self._pool, self._device),
        ):
            self._held.append(work)
            self._make(work, bundle)

    def _event(self) -> Any:
        """One that is waited for asleep: waiting awake would take a core, and the driver's locks, from the trainer."""
        return self._events.pop() if self._events else self._cuda.Event(enable_timing=True, blocking=True)

    def _make_room(self) -> None:
        """For another batch. A pool that has grown in pieces is given back, once nothing of it is in use."""
        grown = self._reserved > 2 * self._dataset.options.memory
        while self._held and (grown or len(self._held) >= HELD):
            self._let_go()
        if grown:
            self._reserved, self._pool = 0, self._cuda.MemPool()

    def _make(self, work: Work, bundle: Bundle) -> None:
        recipe, stream, launches, device = self._dataset.recipe, self._stream, self._launches, self._device
        pictures, width = _Pictures(bundle, device, self._together), bundle.shape[1]
        parts = pictures.parts(max(1, self._dataset.options.memory // HELD))
        for part in parts:
            began = time.perf_counter_ns()
            usable = _usable(pictures.decoded(part), part, pictures.sizes, work)
            work.decoding += time.perf_counter_ns() - began
            here = slice(part.start, part.stop)
            table = launches.table(usable, pictures.rows[here], width, device)
            if part.start == 0:
                stream.wait_event(work.asked)
                for target, source in zip(tensors(work.rest), tensors((bundle.rest, bundle.boxes)), strict=True):
                    target.copy_(source, non_blocking=True)
                work.started.record(stream)
            out = work.out if len(parts) == 1 else work.out[here]
            work.kept += (usable, table, launches.render(table, recipe, out))
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                table = launches.table(masks, pictures.rows[here], width, device)
                launches.nearest(table, recipe.before, recipe.after, work.masks[here])
                work.kept += (masks, table)
            if part is not parts[-1]:
                work.done.record(stream)
                work.done.synchronize()
                work.kept.clear()
        work.done.record(stream)
        (decoding, rendering), self._spent = self._spent, (0.0, 0.0)
        work.use = _use(pictures, decoding, rendering, self._measured())

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
        return work.decoding, int(work.started.elapsed_time(work.done) * 1e6)

    def release(self, work: Work) -> None:
        """See ``Renderer``. Its events are used again when both threads have done with it."""
        try:
            work.users.pop()
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
            self._stream = self._pool = None
            self._events.clear()
            self._batches = self._reserved = 0


def renderer(dataset: Prepared, device: torch.device) -> Renderer:
    """For batches on ``device``. Raises ``DeviceUnavailable`` where something is missing there."""
    while _warming:  # workers are forked next, and nobody shall inherit a lock that it holds
        _warming.pop().join()
    if device.type == "cpu":
        return Host(dataset)
    return CudaRenderer(dataset, _numbered(device), first_bundle(dataset))


_warming: list[threading.Thread] = []


def warm(dataset: Prepared, device: Any) -> None:
    """Begin with what the first batch of a process needs: modules, and, where CUDA is in use already, decoder and
    kernels.

    For a loader that was just made, while its caller builds a model. ``renderer`` waits for it.
    """
    try:
        chosen = torch.device(device)
    except (TypeError, RuntimeError):  # said where it is used
        return
    cuda: Any = torch.cuda
    if chosen.type != "cuda" or not cuda.is_available():
        return
    before = _warming[-1] if _warming else None
    trial = (dataset, _numbered(chosen), first_bundle(dataset)) if cuda.is_initialized() else None
    thread = threading.Thread(target=_warm, args=(trial, before), name="headrace warming", daemon=True)
    _warming.append(thread)
    thread.start()


def _warm(trial: tuple[Prepared, torch.device, Bundle | None] | None, before: threading.Thread | None) -> None:
    if before is not None:
        before.join()
    with suppress(Exception):  # raised again where it is needed
        importlib.import_module(LAUNCHES)
        if trial is not None:
            tried = CudaRenderer(*trial)
            try:
                tried.prepare()
            finally:
                tried.finish()


def _numbered(device: torch.device) -> torch.device:
    """Which one it is for the calling thread."""
    index: int | None = device.index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)
