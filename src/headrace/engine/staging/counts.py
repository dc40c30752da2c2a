"""What samples began with, counted by the processes that made them, in a file without a name that they share."""

import os
import struct

_RECORD = struct.Struct("<5q")


class Counts:
    """The loader's: it adds up. Samples made from the store, and from encoded, decoded and augmented entries; and those
    that were not kept, for they are cheap to make.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self._fd, self._pid = -1, 0
        self._before = [0, 0, 0, 0, 0]

    def path(self) -> str:
        """Where other processes of this user find it, as long as it is not closed."""
        if self._fd < 0 or self._pid != os.getpid():
            self._fd, self._pid = os.memfd_create("headrace-counts", os.MFD_CLOEXEC), os.getpid()
        return f"/proc/{self._pid}/fd/{self._fd}"

    def here(self) -> "Counter":
        """For samples that this process makes itself."""
        self.path()
        return Counter(self._fd, 0)

    def total(self) -> list[int]:
        """Of all processes, since the loader was made."""
        found = list(self._before)
        if self._fd >= 0 and self._pid == os.getpid():
            content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
            whole = len(content) // _RECORD.size * _RECORD.size  # a worker may be writing the last one
            for each in _RECORD.iter_unpack(content[:whole]):
                found = [a + b for a, b in zip(found, each, strict=True)]
        return found

    def made(self) -> int:
        """Samples of all processes, whatever they began with."""
        return sum(self.total()[:-1])

    def close(self) -> None:
        """What was counted stays; idempotent."""
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
        self._counts = list(_RECORD.unpack(content.ljust(_RECORD.size, b"\0")))

    @classmethod
    def of_worker(cls, path: str, lane: int) -> "Counter":
        """As long as the process lives."""
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
        self._counts[-1] += 1

    def tell(self) -> None:
        """Before samples are handed on."""
        if self._fd >= 0:
            os.pwrite(self._fd, _RECORD.pack(*self._counts), self._at)
