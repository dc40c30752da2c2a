"""Which file's code an address was, in which process, at which time."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from headrace.trace.hardware.records import Change


class Mapping(NamedTuple):
    """A piece of a file in memory."""

    time: int
    start: int
    end: int
    offset: int
    file: str


class Spaces:
    """The address spaces of all processes, as they changed. A forked process begins with its parent's."""

    def __init__(self, changes: Iterable[Change]) -> None:
        """``changes`` in order of time."""
        self._mappings: dict[int, list[Mapping]] = defaultdict(list)
        self._execs: dict[int, list[int]] = defaultdict(list)
        self._before: dict[int, list[list[Mapping]]] = defaultdict(list)
        for change in changes:
            if change.kind == "fork":
                self._mappings[change.process] = list(self._mappings[change.parent])
            elif change.kind == "exec":
                self._before[change.process].append(self._mappings[change.process])
                self._execs[change.process].append(change.time)
                self._mappings[change.process] = []
            else:
                mapping = Mapping(change.time, change.start, change.end, change.offset, change.file)
                self._mappings[change.process].append(mapping)

    def program(self, process: int, time: int) -> int:
        """How many programs the process had executed by then."""
        return bisect_right(self._execs[process], time) if process in self._execs else 0

    def find(self, process: int, program: int, address: int) -> Mapping | None:
        """The mapping that an address was in, the latest where several were."""
        past = self._before.get(process, [])
        mappings = past[program] if program < len(past) else self._mappings.get(process, [])
        for mapping in reversed(mappings):
            if mapping.start <= address < mapping.end:
                return mapping
        return None
