"""Buffer of one thread's records, on their way to the file."""

import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence

from headrace.trace import format as F

Room = Callable[[int, int], "mmap.mmap | None"]
"""(stream, number): the next extent of a stream; None when there is none."""

MOST_OPERATIONS = 250
_PACK = [struct.Struct(f"<{2 * units}Q").pack_into for units in range(MOST_OPERATIONS + 4)]
_PAIR = _PACK[2]  # looked up here and not in each call, like the names below: a record costs tenths of a microsecond
_LENGTH, _FULL = F.LENGTH, F.CPU_FULL << F.CPU_SHIFT
_MASK32, _UNKNOWN, _ROWS_ID = F.MASK32, F.CPU_UNKNOWN, F.head(F.ROWS_ID, 0)
_SAMPLE_IDS = [F.head(F.SAMPLE_ID, count << 44) for count in range(MOST_OPERATIONS + 1)]


class TraceStream:
    """Appends records. Times are the caller's ``time.monotonic_ns()``; a method costs well below a microsecond."""

    def __init__(self, room: Room, base: int) -> None:
        """Takes its first extent when it is first written to."""
        self._room, self._base = room, base
        self._number, self._id = 0, int.from_bytes(os.urandom(8), "little")
        self._buffer: mmap.mmap | bytearray = bytearray(0)
        self._at = self._end = 0
        self._names: dict[tuple[int, str], int] = {}
        self._run = self._keys = 0
        self._stopped = False
        # What start times are added to: head and base in one.
        self._sample, self._rows, self._collate, self._batch, self._copy, self._span = (
            F.head(tag, 0) - base for tag in (F.SAMPLE, F.ROWS, F.COLLATE, F.BATCH, F.COPY, F.SPAN)
        )

    def _put(self, *words: int) -> None:
        size = 8 * len(words)
        at = self._at
        if at + size > self._end:
            at = self._extend()
        self._at = at + size
        _PACK[len(words) >> 1](self._buffer, at, *words)

    def _extend(self) -> int:
        """Go on in another extent; once there is none, in memory that nobody reads."""
        room = None if self._stopped else self._room(self._id, self._number)
        if room is None:
            self._stopped = True
            self._buffer, self._at, self._end = bytearray(F.EXTENT), 0, F.EXTENT
            return 0
        self._buffer, self._at, self._end = room, F.UNITS_OFFSET, F.EXTENT
        self._number += 1
        return self._at

    def sample(
        self, index: object, start: int, elapsed: int, cpu: int, sizes: int, flags: int, marks: list[int]
    ) -> None:
        """Record a sample. ``sizes``: bytes in << 32 | bytes out. ``marks``: value and head of each operation, in
        turn.
        """
        if type(index) is int and 0 <= index < _MASK32:
            identity = flags << 32 | index if flags else index
        else:
            identity, wide = self._wide(index, flags)
            marks = [*wide, *marks]
        count = len(marks) >> 1
        if count > MOST_OPERATIONS:
            count, marks = MOST_OPERATIONS, marks[: 2 * MOST_OPERATIONS]
        at, identity = self._at, _SAMPLE_IDS[count] + identity
        if at + 32 + 16 * count > self._end:
            at = self._extend()
        self._at = at + 32 + 16 * count
        value = elapsed | _FULL if cpu == elapsed < _LENGTH else F.span(elapsed, cpu)
        if count:
            _PACK[count + 2](self._buffer, at, value, self._sample + start, sizes, identity, *marks)
        else:
            _PAIR(self._buffer, at, value, self._sample + start, sizes, identity)

    def keyed(self, key: str, flags: int, marks: list[int]) -> tuple[int, list[int]]:
        """Flags and marks of a sample whose key is to be known beside its index, a number below 2**32 - 1."""
        return flags | F.KEY, [0, F.head(F.WIDE, self.define(F.KEY_TEXT, key[:1000])), *marks]

    def _wide(self, index: object, flags: int) -> tuple[int, tuple[int, int]]:
        """The encoding of an index that is no small number."""
        try:
            number = int(index.__index__())  # type: ignore[attr-defined]  # numpy's and torch's integers have it
        except (AttributeError, TypeError):
            number = self.define(F.KEY_TEXT, repr(index)[:1000])
            return (flags | F.KEY) << 32 | F.NO_INDEX, (0, F.head(F.WIDE, number))
        return (flags | F.WIDE_INDEX) << 32, (0, F.head(F.WIDE, number & F.PAYLOAD))

    def _pair(self, value: int, head: int, detail: int, identity: int) -> None:
        at = self._at
        if at + 32 > self._end:
            at = self._extend()
        self._at = at + 32
        _PAIR(self._buffer, at, value, head, detail, identity)

    def rows(self, batch: int, first: int, count: int, start: int, elapsed: int) -> None:
        """The last ``count`` samples that landed nowhere yet were written to a batch."""
        self._pair(elapsed | _UNKNOWN, self._rows + start, first << 32 | count, _ROWS_ID | batch)

    def collate(self, batch: int, samples: int, start: int, elapsed: int) -> None:
        self._pair(elapsed | _UNKNOWN, self._collate + start, samples, F.COLLATE_ID << 52 | batch)

    def batch(self, batch: int, samples: int, ready: int, outstanding: int, start: int, elapsed: int) -> None:
        """The trainer asked at ``start`` and had the batch ``elapsed`` later; so many others were ready then."""
        state = samples << 32 | min(ready, 0xFFFF) << 16 | min(outstanding, 0xFFFF)
        self._pair(elapsed | _UNKNOWN, self._batch + start, state, F.BATCH_ID << 52 | batch)

    def copy(self, batch: int, size: int, start: int, elapsed: int) -> None:
        """A batch travelled to the device."""
        self._pair(elapsed | _UNKNOWN, self._copy + start, size, F.COPY_ID << 52 | batch)

    def span(self, name: str, start: int, elapsed: int) -> None:
        """Record a span of the user's own."""
        number = self.define(F.NAME, name)
        self._pair(F.span(elapsed), self._span + start, 0, F.SPAN_ID << 52 | number)

    def counter(self, name: str, value: int, now: int) -> None:
        """A quantity has this value from now on."""
        self._put(self.define(F.NAME, name) << 48 | max(0, value) & F.MASK48, F.COUNTER << 52 | now - self._base)

    def event(self, name: str, value: int, now: int) -> None:
        self._put(self.define(F.NAME, name) << 48 | max(0, value) & F.MASK48, F.EVENT << 52 | now - self._base)

    def run(self, run: int, now: int) -> None:
        """Mark the records that follow as that run's."""
        if run != self._run:
            self._run = run
            self._put(run, F.RUN << 52 | now - self._base)

    def describe(self, kind: int, facts: Mapping[str, object]) -> None:
        """Facts of a run or of this stream, once."""
        self.define(kind, json.dumps(facts))

    def operations(self, names: Sequence[str]) -> list[int]:
        """The number to add to a start time for the head of each of these operations."""
        return [F.head(self.define(F.OPERATION, name), 0) - self._base for name in names]

    def define(self, kind: int, text: str) -> int:
        """The number of a text in this stream, written when it is first used."""
        number = self._names.get((kind, text))
        if number is None:
            number = 1 + sum(known == kind for known, _ in self._names)
            if kind == F.OPERATION and number > F.LAST_OPERATION:
                return F.LAST_OPERATION
            if kind == F.KEY_TEXT:  # every sample may have its own: they are not kept
                number = self._keys = self._keys + 1
            else:
                self._names[kind, text] = number
            raw = text.encode(errors="backslashreplace")[:3000]  # a path that is not UTF-8 must not cost its sample
            words = [kind, F.head(F.DEFINE, number << 24 | len(raw))]
            for i in range(0, len(raw), F.TEXT_BYTES):
                piece = raw[i : i + F.TEXT_BYTES].ljust(F.TEXT_BYTES, b"\0")
                words += [int.from_bytes(piece[:8], "little"), F.head(F.TEXT, int.from_bytes(piece[8:], "little"))]
            self._put(*words)
        return number
