"""Reservation of one sparse shared mapping per run: the ledger's words, blobs, a record and a region for every
slot.

It is an anonymous memory file: it needs no ``/dev/shm``, one descriptor, and memory only where something was written.
Because every slot is reserved far larger than any batch, no allocator is needed and a batch never has to move.
"""

import errno
import mmap
import os
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from headrace.core.errors import SlabError
from headrace.engine.memory.limits import address_space, explained
from headrace.sched.ledger_layout import Dims

BLOB = 8 << 20  # per group: pickled indices and errors
RECORD = 256 << 10  # per slot: what its rows look like
SLOT = 8 << 30
LEAST, FAIR, USUAL = 1 << 20, 32 << 20, 128 << 20  # of no use if smaller; room for small batches; for most
PAGE = mmap.PAGESIZE
SHARE = 4  # where address space is limited, a loader takes this part of what is left


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of the work that a reservation is for."""

    lanes: int
    """Workers there can ever be."""
    batches: int
    """That are in the making or ready, at most."""
    rows: int | None
    """Samples in a batch; None when a batch may have any number."""
    told: int = 0
    """Records in a lane's story."""

    def dims(self, space: int | None) -> Dims:
        """The dimensions that fit into ``space`` bytes of address space; None: as much as could ever be wanted."""
        if space is None:
            groups = max(1024, 8 * self.batches + self.lanes)
            slots, rows = max(256, 8 * self.batches), self.rows or ANY_ROWS
            return Dims(max(512, self.lanes), groups, slots, rows, self.told)
        groups, most = 2 * self.batches + self.lanes + 8, 2 * self.batches + 4
        rows = self.rows or ANY_ROWS
        while self.rows is None and rows > 1024 and 8 * Dims(self.lanes, groups, most, rows).words > space // 4:
            rows //= 2
        left = space - fixed(Dims(self.lanes, groups, most, rows, self.told))
        # Fewer slots cost nothing but batches ahead; a batch that does not fit into its slot is an error.
        return Dims(self.lanes, groups, max(self.lanes + 2, min(most, left // USUAL)), rows, self.told)


def fixed(dims: Dims) -> int:
    """Bytes that are not slots."""
    return _page(8 * dims.words) + dims.groups * BLOB + dims.slots * RECORD


ANY_ROWS = 1 << 20


_STAYING: list[mmap.mmap] = []


class Reservation:
    """The mapping. Picklable while a process is being started: the child maps the same memory."""

    def __init__(self, dims: Dims = Dims(), fd: int | None = None, slot_bytes: int = SLOT) -> None:  # noqa: B008
        """Reserve address space, or map ``fd`` that another process reserved."""
        self.dims, self.slot_bytes, self.stays = dims, slot_bytes, False
        self.blobs = _page(8 * dims.words)
        self.records = self.blobs + dims.groups * BLOB
        self.slots = self.records + dims.slots * RECORD
        size = self.slots + dims.slots * slot_bytes
        with explained("make a memory file for batches"):
            self.fd = os.memfd_create("headrace", os.MFD_CLOEXEC) if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, size)
            self.map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED)  # which keeps a descriptor of its own
        except (OSError, ValueError) as error:
            os.close(self.fd)
            if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
                with explained("map the memory file for batches"):
                    raise
            raise SlabError(
                f"cannot reserve {size >> 20} MiB of address space for batches ({error}); "
                "raise the limit (ulimit -v, ulimit -f) or use num_workers=0"
            ) from error
        self._closed = weakref.finalize(self, os.close, self.fd)
        self.bytes = memoryview(self.map)
        self.words = self.bytes[: 8 * dims.words].cast("q")

    @classmethod
    def of(cls, extent: Extent) -> "Reservation":
        """A reservation as large as the work may want, or a part of the address space left under ``ulimit -v``.

        Only address space: memory is used where something is written.
        """
        space = address_space()
        share = None if space is None else space // SHARE
        dims = extent.dims(share)
        slot_bytes = SLOT
        if share is not None:
            slot_bytes = max(FAIR, min(SLOT, (share - fixed(dims)) // dims.slots // PAGE * PAGE))
        while True:
            try:
                return cls(dims, slot_bytes=slot_bytes)
            except SlabError:  # limits on file sizes, say, or a sandbox's own
                if slot_bytes <= LEAST:
                    raise
                slot_bytes = max(LEAST, slot_bytes // 2)

    @property
    def shortage(self) -> str:
        """The reason why a slot is no larger, for a message; empty when it is as large as they come."""
        return (
            "" if self.slot_bytes >= SLOT else "; address space is limited (ulimit -v): raise it, or use fewer workers"
        )

    def blob(self, group: int) -> int:
        """The offset of a group's blob."""
        return self.blobs + group * BLOB

    def record(self, slot: int) -> int:
        """The offset of a slot's record."""
        return self.records + slot * RECORD

    def slot(self, slot: int) -> int:
        """The offset of a slot's data."""
        return self.slots + slot * self.slot_bytes

    def read_sized(self, at: int) -> memoryview:
        """The bytes that ``write_sized`` left at an offset."""
        size = int.from_bytes(self.bytes[at : at + 8], "little")
        return self.bytes[at + 8 : at + 8 + size]

    def write_sized(self, at: int, content: bytes) -> None:
        """Write the content behind its length, which takes 8 bytes."""
        self.bytes[at : at + 8] = len(content).to_bytes(8, "little")
        self.bytes[at + 8 : at + 8 + len(content)] = content

    def stay(self) -> None:
        """Keep the mapping, unused, until the process ends."""
        self.stays = True
        _STAYING.append(self.map)

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
