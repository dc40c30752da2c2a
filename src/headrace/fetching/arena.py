"""Memory in which payloads wait: written by the fetcher, read by workers, in a mapping of its own.

Behind the payloads lies one word, the fetcher's pulse: as long as it changes, the fetcher's loop runs.
"""

import json
import mmap
import os
import weakref
from multiprocessing import reduction
from typing import Any

from headrace.core.errors import SlabError
from headrace.fetching.wire import BLOB_LABEL, NUMBER_LABEL, Arrived
from headrace.store import failures
from headrace.store.base import Label, Row

PULSE = mmap.PAGESIZE
"""Bytes behind the payloads."""


class Arena:
    """A sparse memory file. Picklable while a process is being started: the child maps the same memory."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        """``size`` bytes of address space, memory only where something was written; or ``fd``, made by another."""
        self.size = size
        try:
            self.fd = os.memfd_create("headrace-payloads", os.MFD_CLOEXEC) if fd is None else fd
            if fd is None:
                os.ftruncate(self.fd, size + PULSE)
            self._map = mmap.mmap(self.fd, size + PULSE, flags=mmap.MAP_SHARED)
        except (OSError, ValueError) as error:
            raise SlabError(
                f"cannot reserve {size >> 20} MiB for payloads ({error}); use a smaller Prefetch(memory=...)"
            ) from error
        self._closed = weakref.finalize(self, os.close, self.fd)
        self._view = memoryview(self._map)
        self._pulse = self._view[size : size + 8].cast("Q")

    @property
    def pulse(self) -> int:
        """The number of rounds that the fetcher's loop has made."""
        return self._pulse[0]

    def beat(self) -> None:
        self._pulse[0] += 1

    def write(self, offset: int, *parts: bytes | memoryview) -> None:
        """Payload and label, one behind the other."""
        for part in parts:
            self._view[offset : offset + len(part)] = part
            offset += len(part)

    def piece(self, offset: int, size: int) -> memoryview:
        """The memory itself, to be written to. Whoever has it lets go of it before the arena is closed."""
        return self._view[offset : offset + size]

    def read(self, place: Arrived, key: str) -> Row:
        """A copy of what arrived, or the error that came instead, raised.

        The copy stays as it is whatever the arena is used for afterwards.
        """
        end = place.offset + place.size
        label: Label = None
        if place.label_kind == NUMBER_LABEL:
            label = place.label
        elif place.label_kind == BLOB_LABEL:
            label = bytes(self._view[end : end + place.label])
        payload = bytes(self._view[place.offset : end])
        if place.failed:
            raise failures.rebuilt(json.loads(payload))
        return Row(key, payload, label)

    def empty(self) -> None:
        """Give back the memory of the whole arena: nothing in it is needed any more."""
        self.give_back(0, self.size)

    def give_back(self, offset: int, size: int) -> None:
        """Give back memory that is not needed any more: its whole pages are the system's again, until something is
        written.
        """
        begin, end = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            self._map.madvise(mmap.MADV_REMOVE, begin, end - begin)

    def close(self) -> None:
        if self._closed.alive:
            self._pulse.release()  # a mapping with views of it cannot be closed
            self._view.release()
            self._map.close()
            self._closed()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to a starting process as a descriptor."""
        return _attach, (self.size, reduction.DupFd(self.fd))


def _attach(size: int, handle: Any) -> Arena:
    return Arena(size, handle.detach())
