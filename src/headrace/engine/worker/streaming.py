"""Batches of an iterable dataset: each worker runs its own iterator and makes whole batches."""

import time
from contextlib import suppress
from typing import Any

from headrace.engine.memory import codec
from headrace.engine.worker import failure, generators
from headrace.engine.worker.collator import Collator
from headrace.engine.worker.desk import Desk
from headrace.engine.worker.job import Job
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stream import Stream
from headrace.sched.moves import Next
from headrace.sched.resume import Resume


class StreamMaker:
    """The loop of one worker over its own copy of the dataset."""

    def __init__(self, job: Job, desk: Desk, observer: Observer, refusal: bytes | None) -> None:
        """``refusal``: what the first batch fails with because the worker could not start properly."""
        self._task, self._desk, self._refusal = job.task, desk, refusal
        self._what = job.task.dataset, job.task.batch_size if job.task.batched else None
        self._lane = desk.stream()
        self._collator = Collator(job, desk, observer)
        self._observer, self._next = observer, observer.items()
        self._where = f"in DataLoader worker process {job.lane}"
        self._resume = job.resume
        self._stream: Stream | None = None
        self._fresh, self._noted = generators.captured(), False

    def run(self) -> None:
        """Until the stop flag is set."""
        desk, stream = self._desk, self._observer.stream
        while True:
            what, slot, fresh = self._lane.visit()
            if fresh:
                self._stream = None
            if what == Next.STOP:
                return
            if what == Next.ASLEEP:
                self._observer.settle()
                desk.bell.wait()
                continue
            if stream is not None:
                stream.run(desk.ledger.first_run, time.monotonic_ns())
            made = self._make(slot)
            if self._lane.end() if made is None else self._lane.ready(slot, *made):
                desk.consumer.ring()

    def _make(self, slot: int) -> tuple[int, int, int, bool] | None:
        """(samples, offset, size, failed) of the next batch; None at the end of the stream."""
        fatal = False
        try:
            if self._refusal is not None:
                packed, self._refusal = self._refusal, None
                return 0, *self._desk.write_error(slot, packed), True
            fatal = self._stream is None and self._resume != Resume()
            stream = self._stream or self._begun()
            fatal = False
            items = stream.items()
            if items is None:
                self._note(slot, None)
                return None
            state = stream.state()
        except failure.LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
            place = self._desk.write_error(slot, failure.pack(error, self._where, fatal=fatal))
            # What the batch had read is lost, and not read again after a resume; kept items are not lost.
            if self._stream is not None and not self._task.keep_partial:
                with suppress(Exception):  # one error is enough
                    self._note(slot, self._stream.state())
            return 0, *place, True
        if stream.ended:
            self._lane.mark_last(slot)
        if self._observer.stream is not None:
            batch = self._desk.ledger.number(slot)
            self._observer.stream.rows(batch, 0, len(items), time.monotonic_ns(), 0)
        offset, size, failed = self._collator.collate(slot, items, None)
        self._observer.tell(len(items), size // max(1, len(items)))
        self._note(slot, state)
        return len(items), offset, size, failed

    def _begun(self) -> Stream:
        """The pass of the epoch that has begun."""
        resume = self._resume if self._resume.generation == self._lane.generation else None
        if resume is None:
            began = generators.captured()
            resume = Resume(began=None if began == self._fresh else began)
        task = self._task
        self._stream = Stream(
            *self._what,
            drop_last=task.drop_last,
            keep_partial=task.keep_partial,
            resume=resume,
            item=self._next,
        )
        self._resume = Resume()
        return self._stream

    def _note(self, slot: int, state: dict[str, Any] | None) -> None:
        """Leave what the stream can be taken up from after this batch beside it, where there is anything to say."""
        assert self._stream is not None
        random = generators.captured()
        after = state, self._stream.began, None if random == self._fresh else random
        if self._noted or after != (None, None, None):
            self._noted = True
            self._lane.attach(slot, self._desk.write_object(slot, codec.Encoded(after)))
