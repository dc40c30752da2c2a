"""What a sample goes through while it is made, noted by those who know: one list, filled by every operation."""

import os
import time
from collections.abc import Callable
from typing import Any

from headrace.trace import format as F

EVERY = 8
"""One sample in so many has its operations' CPU time read: the clock costs more than the rest of a record."""

Hook = Callable[[int], None]


class Probe:
    """Collects the operations of the sample being made. One per process that makes samples.

    ``marks`` holds the value and the head of each operation, as the trace has them. ``cell[0]`` is the operation under
    way, from 1 on, 0 between them, for others to see. What an operation consists of is noted instead of itself.
    """

    def __init__(self, cell: "list[int] | memoryview[int] | None" = None) -> None:
        """``cell``: shared memory, or a list nobody looks at."""
        self.marks: list[int] = []
        self.cell: list[int] | memoryview[int] = [0] if cell is None else cell
        self.reads_cpu = False
        self.bytes_in = 0
        self.enter: Hook | None = None
        self.leave: Hook | None = None
        self._made = 0

    def begin(self) -> None:
        """A sample is about to be made."""
        self.marks.clear()
        self.bytes_in = 0
        self._made += 1
        self.reads_cpu = self._made % EVERY == 0

    def timed(self, call: Callable[..., Any], number: int, head: int) -> Callable[..., Any]:
        """``call``, noted as operation ``number``; ``head``: what its start time is added to."""
        marks, cell, clock, cpu_clock = self.marks, self.cell, time.monotonic_ns, time.thread_time_ns
        unknown = F.CPU_UNKNOWN

        def noted(*args: Any, **kwargs: Any) -> Any:
            before, outer = len(marks), cell[0]
            cell[0] = number
            if self.enter is not None:
                self.enter(number)
            cpu = cpu_clock() if self.reads_cpu else -1
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                elapsed = clock() - start
                if self.leave is not None:
                    self.leave(number)
                cell[0] = outer
                if len(marks) == before:
                    marks.append(elapsed | unknown if cpu < 0 else F.span(elapsed, cpu_clock() - cpu))
                    marks.append(head + start)

        return noted

    def reading(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, which reads the encoded sample: what it returns, or the file it names, is what came in."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if isinstance(result, (bytes, bytearray, memoryview)):
                self.bytes_in += len(result)
            elif args and isinstance(args[-1], (str, os.PathLike)):
                try:
                    self.bytes_in += os.stat(args[-1]).st_size  # noqa: PTH116  (a Path would cost more than the call)
                except OSError:
                    return result
            return result

        return noted
