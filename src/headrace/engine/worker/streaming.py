"""Batches of an iterable dataset: each worker runs its own iterator and makes whole batches."""

import time

from headrace.engine.memory import codec
from headrace.engine.worker import failure
from headrace.engine.worker.collator import Collator
from headrace.engine.worker.desk import Desk
from headrace.engine.worker.job import Job, Resume
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stream import Stream
from headrace.sched import words as W
from headrace.sched.streams import LaneStream


class StreamMaker:
    """The loop of one worker over its own copy of the dataset."""

    def __init__(self, job: Job, desk: Desk, observer: Observer, refusal: bytes | None) -> None:
        """``refusal``: what the first batch fails with because the worker could not start properly."""
        self._task, self._desk, self._refusal = job.task, desk, refusal
        self._what = job.task.dataset, job.task.batch_size if job.task.batched else None
        self._lane = LaneStream(desk.words, desk.memory.dims, job.lane)
        self._collator = Collator(job, desk, observer)
        self._observer, self._next = observer, observer.items()
        self._where = f"in DataLoader worker process {job.lane}"
        self._resume = job.resume
        self._stream: Stream | None = None

    def run(self) -> None:
        """Until the stop flag is set."""
        w, desk = self._desk.words, self._desk
        while True:
            with desk.lock:
                if w[W.STOP]:
                    return
                if self._lane.renew():
                    self._stream = None
                slot = self._lane.take()
                if slot is None:
                    w[desk.lane + W.L_WAITING] = W.FOR_ROOM
            if slot is None:
                self._observer.settle()
                desk.bell.wait()
                continue
            if self._observer.stream is not None:
                self._observer.stream.run(w[W.RUN], time.monotonic_ns())
            made = self._make(slot)
            with desk.lock:
                wake = self._lane.end() if made is None else self._lane.ready(slot, *made)
            if wake:
                desk.consumer.ring()

    def _make(self, slot: int) -> tuple[int, int, int, bool] | None:
        """(samples, offset, size, failed) of the next batch; None at the end of the stream."""
        try:
            if self._refusal is not None:
                packed, self._refusal = self._refusal, None
                return 0, *self._desk.write_error(slot, packed), True
            if self._stream is None:
                generation = self._desk.words[self._desk.lane + W.L_GENERATION]
                task, resume = self._task, self._resume if self._resume.generation == generation else Resume()
                self._stream = Stream(
                    *self._what,
                    drop_last=task.drop_last,
                    keep_partial=task.keep_partial,
                    resume=resume,
                    item=self._next,
                )
                self._resume = Resume()
            items = self._stream.items()
            if items is None:
                return None
            state = self._stream.state()
        except failure.LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
            return 0, *self._desk.write_error(slot, failure.pack(error, self._where)), True
        if self._stream.ended:
            self._lane.mark_last(slot)
        if self._observer.stream is not None:
            batch = self._desk.slot_word(slot, W.S_BATCH)
            self._observer.stream.rows(batch, 0, len(items), time.monotonic_ns(), 0)
        offset, size, failed = self._collator.collate(slot, items, None)
        self._observer.tell(len(items), size // max(1, len(items)))
        if not failed and state is not None:
            self._lane.attach(slot, self._desk.write_object(slot, codec.Encoded(state)))
        return len(items), offset, size, failed
