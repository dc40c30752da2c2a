"""Notes on the samples a process makes: for the estimate of their costs, and for the trace."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.engine.members import key_of
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import TELL_NS, Get, Observer
from headrace.observing.operations import Operations
from headrace.observing.run_queue import queued_ns
from headrace.plan import operation_costs
from headrace.staging.stages import Noted, Stages
from headrace.staging.watching import Undo
from headrace.trace import format as F
from headrace.trace.probe import Probe
from headrace.trace.session import count_instructions
from headrace.trace.trace_file import Recording
from headrace.trace.trace_stream import TraceStream

CPU_WORTH_NS = 20_000
"""While samples take less, they wait for nothing, and reading the CPU clock twice would cost a tenth of them."""


class TracingObserver(Observer):
    """Records every sample of one process."""

    stream: TraceStream

    def __init__(
        self,
        dataset: Any,
        recording: Recording,
        memory: WorkerMemory | None = None,
        *,
        worker: int = -1,
        run: int = 0,
    ) -> None:
        """``memory``: a worker's; without one this is torch's ``worker``, or the process that trains.

        ``run``: what all samples are of, where several runs share a process.
        """
        self._operations = Operations(dataset)
        names = self._operations.names
        super().__init__(dataset, memory, len(names))
        self._run = run
        self._facts = None if memory is None else memory.facts
        lane = worker if memory is None else memory.number
        self.probe = Probe(None if memory is None else memory.facts.operation)
        self.stream = recording.stream()
        self.stream.describe(F.STREAM_TEXT, {"role": "main" if lane < 0 else "worker", "lane": lane})
        heads = self.stream.operations(names)
        count_instructions(self.probe, names)
        self._undo: Undo = self._operations.install(self.probe, heads)
        self._queues = lane >= 0
        """Whether it is told how long this thread had no core: the trainer's own waits for much else."""
        self._retries = 0

    def undo(self) -> None:
        """Look no more."""
        self._undo()

    def getter(self) -> Get:
        """``dataset[index]``, whose stages are seen."""
        return self._operations.getter()

    def stages(self) -> Stages | None:
        """The dataset's stages, seen; None where it is not made of stages."""
        return self._operations.stages()

    @property
    def noted(self) -> Noted | None:
        """The function that looks at a dataset's stages."""
        return self._operations.noted

    def samples(self, get: Get) -> Get:
        """``get``, noted."""
        return self._recorded(get, self.stream)

    def bulk(self, get: Get) -> Get:
        """``get``, which makes several samples in one call; the call's time is shared out evenly."""
        stream, probe, marks, due = self.stream, self.probe, self.probe.marks, 0

        def noted(indices: list[Any]) -> Any:
            nonlocal due
            probe.begin()
            flags, cpu, start = F.FAILED, time.thread_time_ns(), time.monotonic_ns()
            if self._run:
                stream.run(self._run, start)
            samples: Any = ()
            try:
                samples = get(indices)
                flags = 0
            finally:
                share = (time.monotonic_ns() - start) // max(1, len(indices))
                cpu = (time.thread_time_ns() - cpu) // max(1, len(indices))
                at, known = 0, len(samples) if isinstance(samples, (list, tuple)) else 0
                for position, index in enumerate(indices):
                    size = size_of(samples[position]) if position < known else 0  # it may give fewer than asked for
                    end = len(marks) * (position + 1) // len(indices) // 2 * 2  # operations are shared out evenly too
                    begun = start + position * share
                    stream.sample(index, begun, share, cpu, size, flags, marks[at:end])
                    at = end
            if start > due:
                due = self._note_queue(stream)
            return samples

        return noted

    def items(self) -> Callable[[Iterator[Any]], Any]:
        """``next``, noted; items are numbered as they come."""
        number, iterator = -1, iter(())
        recorded = self._recorded(lambda _: next(iterator), self.stream)

        def item(source: Iterator[Any]) -> Any:
            nonlocal iterator, number
            iterator, number = source, number + 1
            return recorded(number)

        return item

    def collated(self, batch: int, samples: int, start: int) -> None:
        """The last ``samples`` became a batch in this process, which began at ``start`` and is done."""
        elapsed = time.monotonic_ns() - start
        self.stream.rows(batch, 0, samples, start, 0)
        self.stream.collate(batch, samples, start, elapsed)

    def brought(self, size: int, retries: int, began: int, took: int) -> None:
        """The sample being made comes from ``size`` bytes that were asked for over a network at ``began``."""
        self.probe.bytes_in += size
        self._retries = retries
        self.stream.span(F.NETWORK, began, took)

    def made_elsewhere(self, node: str, size: int, began: int, took: int) -> None:
        """The sample being made was made on another host, and asked for there at ``began``."""
        self.probe.bytes_in += size
        self.stream.span(F.ELSEWHERE + node, began, took)

    def _count(self, pending: list[int]) -> None:
        for at in range(0, len(pending), 2):
            operation_costs.count(self._account, pending[at + 1] >> F.TAG_SHIFT, pending[at] & F.LENGTH)
        pending.clear()

    def _recorded(self, get: Get, stream: TraceStream) -> Get:
        probe, marks, facts, pending, run = self.probe, self.probe.marks, self._facts, self._pending, self._run
        begin, clock, cpu_clock, took = probe.begin, time.monotonic_ns, time.thread_time_ns, 0
        usual, due = 0.0, 0

        def noted(what: Any) -> Any:
            nonlocal took, usual, due
            begin()
            self._retries = self.tier = 0
            cpu = cpu_clock() if took > CPU_WORTH_NS else 0
            start = clock()
            if run:
                stream.run(run, start)
            try:
                sample = get(what)
            except StopIteration:  # the end of a stream is no sample that failed
                raise
            except BaseException:
                sizes = min(probe.bytes_in, F.MASK32) << 32
                stream.sample(what, start, clock() - start, -1, sizes, F.FAILED, marks)
                raise
            took = elapsed = clock() - start
            cpu = cpu_clock() - cpu if cpu else elapsed
            flags = (F.REPEATED if self.repeated else 0) | self._retries << F.RETRIES_SHIFT | self.tier << F.TIER_SHIFT
            if facts is not None:
                if elapsed > facts.threshold > 0:
                    flags |= F.SLOW
                pending.extend(marks)
            sizes = min(probe.bytes_in, F.MASK32) << 32 | size_of(sample)
            # Half of the samples make it grow and half shrink, so it is about their median; it is low rather than high.
            slow = elapsed > F.FAR * usual or flags & F.SLOW
            usual = min(1.1 * usual or elapsed, elapsed) if elapsed > usual else max(0.9 * usual, elapsed)
            stream.sample(what, start, elapsed, cpu, sizes, *(self._named(what, flags) if slow else (flags, marks)))
            if start > due:
                due = self._note_queue(stream)
            return sample

        return noted

    def _note_queue(self, stream: TraceStream) -> int:
        """Note how long this thread had no core so far; the time from which on it is worth noting again."""
        queued = queued_ns() if self._queues else None
        if queued is None:
            return sys.maxsize
        now = time.monotonic_ns()
        stream.counter(F.QUEUED, queued, now)
        return now + TELL_NS

    def _named(self, index: Any, flags: int) -> tuple[int, list[int]]:
        """Flags and marks of a slow sample, with its key where it has one."""
        marks = self.probe.marks
        key = key_of(self._dataset, index) if type(index) is int and 0 <= index < F.NO_INDEX else None
        return (flags, marks) if key is None else self.stream.keyed(key, flags, marks)


_SIZES: dict[type, Callable[[Any], int]] = {
    torch.Tensor: lambda tensor: tensor.nbytes,
    np.ndarray: lambda array: array.nbytes,
    tuple: lambda items: sum(map(_size, items)),
    list: lambda items: sum(map(_size, items)),
    dict: lambda items: sum(map(_size, items.values())),
    bytes: len,
    str: len,
}


def size_of(sample: Any) -> int:
    """Bytes of the tensors, arrays and byte strings in a sample, about; 4 GiB at most."""
    return min(_size(sample), F.MASK32)


def _size(sample: Any) -> int:
    kind = type(sample)
    size = _SIZES.get(kind)
    if size is None:  # once per class
        size = next((known for base, known in _SIZES.items() if issubclass(kind, base)), lambda _: 0)
        _SIZES[kind] = size
    return size(sample)
