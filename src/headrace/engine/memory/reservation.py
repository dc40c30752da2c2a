"""One sparse shared mapping per run: the ledger's words, blobs, and a record and a region for every batch slot.

It is an anonymous memory file: it needs no ``/dev/shm``, one descriptor, and memory only where something was written.
Because every slot is reserved far larger than any batch, no allocator is needed and a batch never has to move.
"""

import mmap
import os
import weakref
from multiprocessing import reduction
from typing import Any

from headrace.core.errors import SlabError
from headrace.sched.words import Dims

BLOB = 16 << 20  # per group: pickled indices and errors
RECORD = 256 << 10  # per slot: what its rows look like
SLOT = 8 << 30
PAGE = mmap.PAGESIZE


class Reservation:
    """The mapping. Picklable while a process is being started: the child maps the same memory."""

    def __init__(self, dims: Dims = Dims(), fd: int | None = None, slot_bytes: int = SLOT) -> None:  # noqa: B008
        """Reserve address space (halving the slots until it fits), or map ``fd`` that another process reserved."""
        self.dims = dims
        while True:
            self.slot_bytes = slot_bytes
            self.blobs = _page(8 * dims.words)
            self.records = self.blobs + dims.groups * BLOB
            self.slots = self.records + dims.slots * RECORD
            size = self.slots + dims.slots * slot_bytes
            try:
                self.fd = os.memfd_create("headrace", os.MFD_CLOEXEC) if fd is None else fd
                if fd is None:
                    os.ftruncate(self.fd, size)
                self.map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED)
            except (OSError, ValueError) as error:
                if fd is None:
                    os.close(self.fd)
                slot_bytes //= 2
                if fd is not None or slot_bytes < 1 << 20:
                    msg = (
                        f"cannot reserve {size >> 20} MiB of address space for batches ({error}); "
                        "raise the limit (ulimit -v, ulimit -f) or use num_workers=0"
                    )
                    raise SlabError(msg) from error
            else:
                break
        self._closed = weakref.finalize(self, os.close, self.fd)
        self.bytes = memoryview(self.map)
        self.words = self.bytes[: 8 * dims.words].cast("q")

    def blob(self, group: int) -> int:
        """Where a group's blob begins."""
        return self.blobs + group * BLOB

    def record(self, slot: int) -> int:
        """Where a slot's record begins."""
        return self.records + slot * RECORD

    def slot(self, slot: int) -> int:
        """Where a slot's data begins."""
        return self.slots + slot * self.slot_bytes

    def drop(self, offset: int, size: int) -> None:
        """Give the memory of a range back; it reads as zeros afterwards."""
        start = _page(offset)
        length = (offset + size - start) // PAGE * PAGE
        if length > 0:
            self.map.madvise(mmap.MADV_REMOVE, start, length)

    def close(self) -> None:
        """Close the descriptor and forget the mapping, which stays for as long as batches are views into it."""
        self._closed()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to a starting process as a descriptor."""
        return _attach, (reduction.DupFd(self.fd), self.dims, self.slot_bytes)


def _attach(handle: Any, dims: Dims, slot_bytes: int) -> Reservation:
    return Reservation(dims, handle.detach(), slot_bytes)


def _page(offset: int) -> int:
    return (offset + PAGE - 1) // PAGE * PAGE
