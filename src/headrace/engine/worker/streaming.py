"""Batches of an iterable dataset: each worker runs its own iterator and makes whole batches."""

import time
from contextlib import suppress
from typing import Any

from headrace.engine.memory import pickled
from headrace.engine.worker import failure
from headrace.engine.worker.collation import Collator
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.randomness import generators
from headrace.engine.worker.startup.job import Job
from headrace.engine.worker.stream import Stream
from headrace.sched.epochs.streams import StreamBatch
from headrace.sched.lanes.lanemachine import RING, STOP
from headrace.sched.lanes.streamlane import MakeNext
from headrace.sched.resume import Resume


class StreamMaker:
    """The loop of one worker over its own copy of the dataset."""

    def __init__(self, job: Job, memory: WorkerMemory, observer: Observer, refusal: bytes | None) -> None:
        """``refusal``: what the first batch fails with because the worker could not start properly."""
        self._task, self._memory, self._refusal = job.task, memory, refusal
        self._what = job.task.dataset, job.task.batch_size if job.task.batched else None
        self._machine = memory.stream(job.resume)
        self._collator = Collator(job, memory, observer)
        self._observer, self._next = observer, observer.items()
        self._where = f"in DataLoader worker process {job.lane}"
        self._stream: Stream | None = None
        self._fresh, self._noted = generators.captured(), False

    def run(self) -> None:
        """Run until the stop flag is set."""
        memory, machine, stream = self._memory, self._machine, self._observer.stream
        while (command := machine.next()) is not STOP:
            if command is RING:
                memory.trainer.ring()
            elif isinstance(command, MakeNext):
                if stream is not None:
                    stream.run(memory.facts.first_run, time.monotonic_ns())
                self._make(command.slot)
            else:
                self._observer.settle()
                memory.bell.wait()

    def _make(self, slot: int) -> None:
        """The next batch, an error in its place, or the end of the stream."""
        machine, fatal = self._machine, False
        if machine.begins:
            self._stream = None
        try:
            if self._refusal is not None:
                packed, self._refusal = self._refusal, None
                machine.made(StreamBatch(0, *self._memory.write_error(slot, packed), failed=True))
                return
            # What goes wrong while a stream is taken up from a state is not the sample's fault: it is never skipped.
            fatal = machine.begins and machine.resume != Resume()
            stream = self._stream or self._begun()
            fatal = False
            items = stream.items()
            if items is None:
                machine.ended(self._note(slot, None))
                return
            state = stream.state()
        except failure.LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
            place, note = self._memory.write_error(slot, failure.pack(error, self._where, fatal=fatal)), -1
            # What the batch had read is lost, and not read again after a resume; kept items are not lost.
            if self._stream is not None and not self._task.keep_partial:
                with suppress(Exception):  # one error is enough
                    note = self._note(slot, self._stream.state())
            machine.made(StreamBatch(0, *place, failed=True, note=note))
            return
        if self._observer.stream is not None:
            batch = self._memory.facts.number(slot)
            self._observer.stream.rows(batch, 0, len(items), time.monotonic_ns(), 0)
        offset, size, failed = self._collator.collate(slot, items, None)
        self._observer.tell(len(items), size // max(1, len(items)))
        note = self._note(slot, state)
        machine.made(StreamBatch(len(items), offset, size, failed, note, stream.ended))

    def _begun(self) -> Stream:
        """The pass of the epoch that has begun."""
        resume = self._machine.start
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
        self._machine.began()
        return self._stream

    def _note(self, slot: int, state: dict[str, Any] | None) -> int:
        """Leave what the stream can be taken up from after this batch beside it: where. -1: there is nothing to say."""
        assert self._stream is not None
        random = generators.captured()
        after = state, self._stream.began, None if random == self._fresh else random
        if not self._noted and after == (None, None, None):
            return -1
        self._noted = True
        return self._memory.write_object(slot, pickled.EncodedObject(after))
