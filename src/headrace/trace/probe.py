"""List of the operations a sample goes through while it is made, filled by those that know them."""

import os
import time
from collections.abc import Callable
from typing import Any

from headrace.trace import format as F

EVERY = 8
"""One sample in so many has its operations' CPU time read: the clock costs more than the rest of a record."""
FAST, WITH_CPU, HOOKED, OFF = 0, 1, 2, 3

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
        self.mode = FAST
        self.bytes_in = 0
        self._hooks: tuple[Hook, Hook] | None = None
        self._made = 0

    def begin(self) -> None:
        """A sample is about to be made."""
        self.marks.clear()
        self.bytes_in = 0
        self._made += 1
        if self.mode <= WITH_CPU:
            self.mode = FAST if self._made % EVERY else WITH_CPU

    def hook(self, enter: Hook, leave: Hook) -> None:
        """Call these around every operation, with its number."""
        self._hooks, self.mode = (enter, leave), HOOKED

    def timed(self, call: Callable[..., Any], number: int, head: int) -> Callable[..., Any]:
        """``call``, noted as operation ``number``; ``head``: what its start time is added to."""
        marks, append, cell, clock, unknown = self.marks, self.marks.append, self.cell, time.monotonic_ns, F.CPU_UNKNOWN

        def noted(*args: Any, **kwargs: Any) -> Any:
            cpu, before = -1, len(marks)
            if self.mode:
                if self.mode == OFF:
                    return call(*args, **kwargs)
                cpu = self._entered(number)
            cell[0] = number
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                elapsed = clock() - start
                cell[0] = 0
                value = elapsed | unknown if cpu < 0 else self._left(number, elapsed, cpu)
                if len(marks) == before:  # else operations within it were noted, and times must not overlap
                    append(value)
                    append(head + start)

        return noted

    def enter(self, number: int) -> tuple[int, int, int]:
        """Operation ``number`` begins here; for ``leave``."""
        cpu, before = -1, len(self.marks)
        if self.mode:
            cpu = self._entered(number)
        self.cell[0] = number
        return time.monotonic_ns(), cpu, before

    def leave(self, number: int, head: int, begun: tuple[int, int, int]) -> None:
        """Note that the operation ends here; see ``timed``."""
        start, cpu, before = begun
        elapsed = time.monotonic_ns() - start
        self.cell[0] = 0
        value = elapsed | F.CPU_UNKNOWN if cpu < 0 else self._left(number, elapsed, cpu)
        if len(self.marks) == before:
            self.marks.append(value)
            self.marks.append(head + start)

    def _entered(self, number: int) -> int:
        if self._hooks is not None:
            self._hooks[0](number)
        return time.thread_time_ns()

    def _left(self, number: int, elapsed: int, cpu: int) -> int:
        value = F.span(elapsed, time.thread_time_ns() - cpu)
        if self._hooks is not None:
            self._hooks[1](number)
        return value

    def reading(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, which reads the encoded sample: what it returns, or the file it names, is what came in."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            encoded = result[0] if isinstance(result, tuple) and result else result  # a label may come with it
            if isinstance(encoded, (bytes, bytearray, memoryview)):
                self.bytes_in += len(encoded)
            elif args and isinstance(args[-1], (str, os.PathLike)):
                try:
                    self.bytes_in += os.stat(args[-1]).st_size  # noqa: PTH116  (a Path would cost more than the call)
                except OSError:
                    return result
            return result

        return noted
