"""Collation in a worker: a batch is made where it will be sent from, and torch's own function needs no other memory."""

import time
from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate

from headrace.engine.memory import pickled
from headrace.engine.worker import failure
from headrace.engine.worker.fitting import fitted
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.randomness import seeding
from headrace.engine.worker.startup.job import Job

COLLATION = 1  # salt: collation's random numbers are not those of the batch's first sample
Allocate = Callable[[torch.Size, torch.dtype], torch.Tensor | None]
Locate = Callable[[torch.Tensor], int | None]

_TORCH_STACK = torch_collate.collate_tensor_fn
_STANDARD = dict(torch_collate.default_collate_fn_map)


def is_standard(collate_fn: Any) -> bool:
    """True if ``collate_fn`` is torch's default and nobody changed what that does."""
    known = torch_collate.default_collate_fn_map
    same = all(known.get(kind) in (function, _stack) for kind, function in _STANDARD.items())
    return collate_fn is default_collate and same and len(known) == len(_STANDARD)


def install(allocate: Allocate, locate: Locate) -> None:
    """Make torch's collation in this process stack tensors into memory from ``allocate``; ``locate`` finds them there.

    torch's own function would create a new shared memory file per tensor and batch, in ``/dev/shm``. A stacking
    function that the user registered is left alone.
    """
    global _allocate, _locate  # one worker, one loop: torch's registry is as global
    _allocate, _locate = allocate, locate
    if torch_collate.default_collate_fn_map[torch.Tensor] is _TORCH_STACK:
        torch_collate.default_collate_fn_map[torch.Tensor] = _stack


# Outside a worker, where nothing is installed: a batch has ordinary memory.
_allocate: Allocate = lambda _shape, _dtype: None  # noqa: E731
_locate: Locate = lambda _: None  # noqa: E731


def allocated(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
    """Memory where the batch being collated will be sent from; None where there is none."""
    return _allocate(shape, dtype)


def is_there(tensor: torch.Tensor) -> bool:
    """True if the tensor lies where the batch being collated will be sent from, and so need not be copied."""
    return _locate(tensor) is not None


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided or not first.is_cpu:
        refused: torch.Tensor = _TORCH_STACK(batch, collate_fn_map=collate_fn_map)
        return refused
    if first.is_quantized:  # whose memory cannot be lent to it
        return torch.stack(batch, 0)
    size = torch.Size((len(batch), *first.shape))
    out = _allocate(size, first.dtype) if type(first) is torch.Tensor else None
    # torch stacks into the first sample's dtype too, with the same errors for unequal sizes and tensors with gradients.
    return torch.stack(batch, 0, out=first.new_empty(size) if out is None else out)


class Collator:
    """The user's collate_fn over samples; whatever it does, the slot has a result or an error afterwards."""

    def __init__(self, job: Job, memory: WorkerMemory, observer: Observer) -> None:
        self._stream = observer.stream
        self._memory, self._collate_fn = memory, job.task.collate_fn
        self._dataset, self._skips = job.task.dataset, job.task.keep_partial
        self._batched, self._seeded = job.task.batched, job.task.seed_samples
        self._where = f"in DataLoader worker process {job.lane}"

    def collate(
        self, slot: int, samples: Any, seed: Any, indices: Callable[[], Sequence[Any]] | None = None
    ) -> tuple[int, int, bool]:
        """(offset, size, failed) of what was written to the slot; without samples (None) an empty result.

        ``samples`` may be a function that reads them from the slot: what it returns is gone when this returns.
        ``indices``: of the samples, where they have some; asked where one of them does not fit.
        """
        memory = self._memory
        try:
            with memory.collating(slot):
                if callable(samples):
                    samples = samples()
                if self._seeded and seed is not None:
                    seeding.seed_sample(memory.facts.seed, memory.facts.epoch, seed, COLLATION)
                began = time.monotonic_ns()
                encoded = pickled.EncodedObject(self._collated(samples, indices), memory.locate)
                offset, size = memory.write_object(slot, encoded), encoded.size
                if self._stream is not None:
                    many = length_hint(samples)  # made in bulk they may be anything, an iterator say
                    self._stream.collate(memory.facts.number(slot), many, began, time.monotonic_ns() - began)
                del encoded, samples
        except failure.LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's function; raised again in the training process)
            return *memory.write_error(slot, failure.pack(error, self._where)), True
        return offset, size, False

    def _collated(self, samples: Any, indices: Callable[[], Sequence[Any]] | None) -> Any:
        if samples is None:
            return None
        if indices is None:
            return self._collate_fn(samples if self._batched else samples[0])
        return fitted(self._collate_fn, samples, indices, self._dataset, batched=self._batched, skips=self._skips)
