"""What is noted of the samples a process makes: for the estimate of their costs, and for the trace."""

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.engine.desk import Desk
from headrace.engine.operations import Operations
from headrace.plan import operations
from headrace.sched import words as W
from headrace.trace import format as F
from headrace.trace.file import Recording
from headrace.trace.hardware import callgrind
from headrace.trace.probe import Probe
from headrace.trace.stream import Stream

Get = Callable[[Any], Any]
TELL_NS = 100_000_000
"""The account is for people to look at: it need not be newer than this."""


class Observer:
    """Looks at every sample of one process, without changing any. ``stream``: where it is recorded, if it is."""

    def __init__(self, dataset: Any, recording: Recording | None, desk: Desk | None = None, worker: int = -1) -> None:
        """``desk``: a worker's; without one this is torch's ``worker``, or the process that trains."""
        self._words = None if desk is None else desk.words
        lane = worker if desk is None else desk.number
        self.probe = Probe(None if desk is None else desk.words[desk.lane + W.L_OPERATION :][:1])
        self.stream: Stream | None = None
        self.repeated = False
        """Whether the next sample is made again, after a death."""
        found = Operations(dataset)
        self.names, now = found.names, time.monotonic_ns()
        heads = [F.head(number, 0) - now for number in range(1, len(self.names) + 1)]
        if recording is not None:
            self.stream = recording.stream()
            self.stream.describe(F.STREAM_TEXT, {"role": "main" if lane < 0 else "worker", "lane": lane})
            heads = self.stream.operations(self.names)
        self.undo = found.install(self.probe, heads)
        callgrind.attach(self.probe, self.names)
        self._pending: list[int] = self.probe.marks if recording is None else []
        self._account = [] if desk is None else desk.account().tolist()
        self._desk, self._told = desk, now

    def samples(self, get: Get) -> Get:
        """``get``, noted."""
        return get if self.stream is None else self._recorded(get, self.stream)

    def bulk(self, get: Get) -> Get:
        """``get``, which makes several samples in one call; the call's time is shared out evenly."""
        stream = self.stream
        if stream is None:
            return get
        probe, marks = self.probe, self.probe.marks

        def noted(indices: list[Any]) -> Any:
            probe.begin()
            flags, cpu, start = F.FAILED, time.thread_time_ns(), time.monotonic_ns()
            samples: Any = None
            try:
                samples = get(indices)
                flags = 0
            finally:
                share = (time.monotonic_ns() - start) // max(1, len(indices))
                cpu = (time.thread_time_ns() - cpu) // max(1, len(indices))
                for position, index in enumerate(indices):
                    size = size_of(samples[position]) if isinstance(samples, (list, tuple)) and samples else 0
                    mine = marks if position == 0 else []
                    stream.sample(index, start + position * share, share, cpu, min(size, F.MASK32), flags, mine)
            return samples

        return noted

    def items(self) -> Callable[[Iterator[Any]], Any]:
        """``next``, noted; items are numbered as they come."""
        if self.stream is None:
            return next
        number, iterator = -1, iter(())
        recorded = self._recorded(lambda _: next(iterator), self.stream)

        def item(source: Iterator[Any]) -> Any:
            nonlocal iterator, number
            iterator, number = source, number + 1
            return recorded(number)

        return item

    def tell(self, samples: int, size: int) -> None:
        """So many samples of about that many bytes were made; the account is brought up to date now and then."""
        account, pending = self._account, self._pending
        operations.count(account, 0, size, samples)
        for at in range(0, len(pending), 2):
            operations.count(account, pending[at + 1] >> F.TAG_SHIFT, pending[at] & F.LENGTH)
        pending.clear()
        now = time.monotonic_ns()
        if self._desk is not None and now - self._told > TELL_NS:
            self._told = now
            self._desk.account()[:] = array("q", account)

    def _recorded(self, get: Get, stream: Stream) -> Get:
        probe, marks, words, pending = self.probe, self.probe.marks, self._words, self._pending
        clock, cpu_clock = time.monotonic_ns, time.thread_time_ns

        def noted(what: Any) -> Any:
            probe.begin()
            sample, sizes, flags = None, 0, F.FAILED
            cpu, start = cpu_clock(), clock()
            try:
                sample = get(what)
                flags = 0
            except StopIteration:
                flags = -1
                raise
            finally:
                elapsed = clock() - start
                cpu = cpu_clock() - cpu
                if flags == 0:
                    flags = F.REPEATED if self.repeated else 0
                    sizes = min(size_of(sample), F.MASK32)
                    if words is not None and elapsed > words[W.THRESHOLD] > 0:
                        flags |= F.SLOW
                if flags >= 0:
                    stream.sample(what, start, elapsed, cpu, min(probe.bytes_in, F.MASK32) << 32 | sizes, flags, marks)
                    pending.extend(marks)
            return sample

        return noted


def size_of(sample: Any) -> int:
    """Bytes of the tensors, arrays and byte strings in a sample, about."""
    if isinstance(sample, (torch.Tensor, np.ndarray)):
        return sample.nbytes
    if isinstance(sample, (tuple, list)):
        return sum(map(size_of, sample))
    if isinstance(sample, dict):
        return sum(map(size_of, sample.values()))
    return len(sample) if isinstance(sample, (bytes, bytearray, str)) else 0
