"""Counts of the forms that samples began with, kept by the processes that made them in an anonymous file that they
share.
"""

import os
import struct
from typing import NamedTuple

_RECORD = struct.Struct("<12q")
_SUMMED = 8


class Counted(NamedTuple):
    """Samples, by what they began with, and what was done with them."""

    misses: int = 0
    encoded: int = 0
    decoded: int = 0
    augmented: int = 0
    cheap: int = 0
    """Not kept, for they are cheap to make."""
    checked_encoded: int = 0
    checked_decoded: int = 0
    """Made anew, to be compared with what the cache has."""
    differing: int = 0
    """Of them, those that were not the same."""

    def plus(self, other: "Counted") -> "Counted":
        """The sums."""
        return Counted(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def made(self) -> int:
        """Samples, whatever they began with."""
        return self.misses + self.encoded + self.decoded + self.augmented


class SpoiltEntry(NamedTuple):
    """A sample of the cache that was not what the job makes of it."""

    sample: int
    form: int


class Counts:
    """The loader's: it adds up."""

    def __init__(self) -> None:
        """Start with nothing counted."""
        self._fd, self._pid = -1, 0
        self._before = Counted()

    def path(self) -> str:
        """The path at which other processes of this user find the file, as long as it is not closed."""
        if self._fd < 0 or self._pid != os.getpid():
            self._fd, self._pid = os.memfd_create("headrace-counts", os.MFD_CLOEXEC), os.getpid()
        return f"/proc/{self._pid}/fd/{self._fd}"

    def here(self) -> "Counter":
        """The counter for samples that this process makes itself."""
        self.path()
        return Counter(self._fd, 0)

    def _records(self) -> list[tuple[int, ...]]:
        if self._fd < 0 or self._pid != os.getpid():
            return []
        content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        whole = len(content) // _RECORD.size * _RECORD.size  # a worker may be writing the last one
        return list(_RECORD.iter_unpack(content[:whole]))

    def total(self) -> Counted:
        """The counts of all processes, since the loader was made."""
        found = self._before
        for each in self._records():
            found = found.plus(Counted(*each[:_SUMMED]))
        return found

    def difference(self) -> SpoiltEntry | None:
        """A difference that a spot check found, if any did."""
        found = (SpoiltEntry(*each[10:]) for each in self._records() if each[11])
        return next(found, None)

    def made(self) -> int:
        """Samples of all processes, whatever they began with."""
        return self.total().made

    def close(self) -> None:
        """Close the file; the counts stay. Idempotent."""
        self._before = self.total()
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._pid == os.getpid():
            os.close(fd)


class Counter:
    """A process's: nobody else writes to its place. One that takes the place of a dead one goes on counting there."""

    def __init__(self, fd: int, place: int) -> None:
        """``fd``: the file, -1 where it cannot be had; it stays the caller's."""
        self._fd, self._at = fd, place * _RECORD.size
        content = b"" if fd < 0 else os.pread(fd, _RECORD.size, self._at)
        found: list[int] = list(_RECORD.unpack(content.ljust(_RECORD.size, b"\0")))
        self._counts, self._difference = found[:_SUMMED], SpoiltEntry(*found[10:])
        self.credit, self.cost = found[8:10]
        """Nanoseconds that may go into checks now, and that the latest took."""

    @classmethod
    def of_worker(cls, path: str, lane: int) -> "Counter":
        """The counter of a worker, which lasts as long as the process lives."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            fd = -1
        return cls(fd, lane + 1)

    def found(self, form: int) -> None:
        """A sample began with that; the loader knows after ``tell``."""
        self._counts[form] += 1

    def cheap(self) -> None:
        """A sample was not kept, for it is cheap to make; the loader knows after ``tell``."""
        self._counts[4] += 1

    def checked(self, form: int) -> int:
        """Encoded or decoded samples that were made anew."""
        return self._counts[4 + form]

    def check(self, form: int) -> None:
        """Count one more sample that was made anew."""
        self._counts[4 + form] += 1

    def differs(self, sample: int, form: int) -> None:
        """Count a sample that was made anew and was not the same; the loader knows at once."""
        self._counts[7] += 1
        self._difference = SpoiltEntry(sample, form)
        self.tell()

    def tell(self) -> None:
        """Write the counts, before samples are handed on."""
        if self._fd >= 0:
            os.pwrite(self._fd, _RECORD.pack(*self._counts, self.credit, self.cost, *self._difference), self._at)
