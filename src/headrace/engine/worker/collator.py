"""Running a collate function in a worker, its result written where the consumer reads it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.memory import codec
from headrace.engine.worker import failure, seeding
from headrace.engine.worker.fitting import fitted
from headrace.engine.worker.job import Job
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import Observer

COLLATION = 1  # salt: collation's random numbers are not those of the batch's first sample


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
                    seeding.seed_sample(memory.facts.seed, memory.facts.slot_epoch(slot), seed, COLLATION)
                began = time.monotonic_ns()
                encoded = codec.EncodedObject(self._collated(samples, indices), memory.locate)
                offset, size = memory.write_object(slot, encoded), encoded.size
                if self._stream is not None:
                    many = 0 if samples is None else len(samples)
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
