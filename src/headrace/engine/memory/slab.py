"""The shared memory of one iteration, recycled for the next: its slots, each free, in the making, or the user's."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np
import torch

from headrace.engine.memory.reservation import Extent, Reservation
from headrace.sched.epochs.slots import SlotView

Register = Callable[[int, int], None]
"""(address, size): page-lock this memory for a device."""


class Pins(Protocol):
    """Registers memory with a device, so that copies need no stop on the way."""

    def register(self, address: int, size: int) -> None:
        """Register this memory."""

    def unregister(self, address: int) -> None:
        """Take it back."""

    def finish(self) -> None:
        """Wait for all copies."""


class Lease(weakref.ref[Any]):
    """A weak reference that is dead when the user has let go of the slot."""

    slot = -1


class Slots:
    """The slots of one slab. A slot given to the user comes back when the last tensor that views it is gone."""

    def __init__(self, memory: Reservation, limit: int, register: Register | None = None) -> None:
        """``limit``: bytes that all slots together may touch; ``register`` is told of memory before it is lent."""
        self._register = register
        self._memory, self._limit = memory, limit
        self.base: int = np.frombuffer(memory.map, np.uint8, 1).ctypes.data
        """The address of the memory."""
        self._view = SlotView(memory.words, memory.dims)
        self._free: list[int] = []
        self._kept: list[int] = []  # free but for a worker's user code that still refers to them
        self._returned: deque[Lease] = deque()
        self._leases: dict[int, Lease] = {}
        self._touched: dict[int, int] = {}
        self.touched = self._largest = 0
        """Bytes that batches have touched in this slab; and in the slot in which they touched most."""
        self._count = 0

    @property
    def is_registered(self) -> bool:
        """True if lent slots go on to a device: then the user never sees the memory itself."""
        return self._register is not None

    def _collect(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            if self._leases.get(lease.slot) is lease:
                del self._leases[lease.slot]
                self._put(lease.slot)
        if self._kept:
            kept, self._kept = self._kept, []
            for slot in kept:
                self._put(slot)

    def _put(self, slot: int) -> None:
        (self._kept if self._view.is_kept(slot) else self._free).append(slot)

    def reclaim(self, held: Collection[int] = ()) -> None:
        """Free every slot that is neither ``held`` nor the user's, whatever was being done with it when that broke
        off.
        """
        for slot, lease in list(self._leases.items()):
            if lease() is None or slot in held:
                del self._leases[slot]
        self._free, self._kept = [], []
        for slot in range(self._count):
            if slot not in held and slot not in self._leases:
                self._put(slot)

    def forget(self, lane: int | None = None) -> None:
        """A worker has ended (None: all have): its user code refers to nothing any more."""
        for slot in range(self._count):
            self._view.let_go(slot, lane)

    def _may_grow(self) -> bool:
        unknown = self._count - len(self._touched)
        within = self.touched + (unknown + 1) * self._largest <= self._limit
        return self._count < self._memory.dims.slots and (within or self._count == 0)

    def spare(self) -> bool:
        """True if another slot could be had should this one be given away; past the limit, none can."""
        if self._returned or self._kept:
            self._collect()
        return (bool(self._free) and self.touched <= self._limit) or self._may_grow()

    def acquire(self, busy: Callable[[int], bool], *, force: bool = False) -> int | None:
        """A free slot that nobody writes to (the one used last, while it is warm in the cache); None at the limit.

        ``busy`` says whether somebody may. ``force`` goes past the limit: without any slot nothing would ever move.
        """
        if self._returned or self._kept:
            self._collect()
        # Not simply the last: a lane that was given up may still write to it, until it next looks at the ledger.
        for position in range(len(self._free) - 1, -1, -1):
            if not busy(self._free[position]):
                return self._free.pop(position)
        if self._may_grow() or (force and self._count < self._memory.dims.slots):
            self._count += 1
            return self._count - 1
        return None

    def release(self, slot: int) -> None:
        """Free a slot whose contents are no longer needed."""
        self._note(slot)
        self._put(slot)

    def lease(self, slot: int) -> memoryview:
        """The slot's memory for the user. It is free again when nothing refers to the view or to a part of it."""
        used = self._note(slot)
        owner: Any = np.frombuffer(self._memory.map, np.uint8, used, self._memory.slot(slot))
        self._lend(slot, owner, used)
        return memoryview(owner)

    def lend(self, slot: int, owner: Any) -> None:
        """The slot is free again when ``owner`` is gone, which nobody refers to yet."""
        self._lend(slot, owner, self._note(slot))

    def _lend(self, slot: int, owner: Any, used: int) -> None:
        if self._register is not None:
            self._register(self.base + self._memory.slot(slot), used)
        # The callback is not one of Python's own: a signal handler that runs in it could raise, which nobody would see.
        lease = Lease(owner, self._returned.append)
        lease.slot = slot
        self._leases[slot] = lease

    def copied(self, slot: int) -> memoryview:
        """The slot's contents in ordinary memory, which lives as long as something refers to it."""
        copy: Any = np.array(self.borrow(slot))
        return memoryview(copy)

    def borrow(self, slot: int) -> memoryview:
        """The slot's memory for as long as the caller itself keeps the slot."""
        used = self._note(slot)
        return self._memory.bytes[self._memory.slot(slot) : self._memory.slot(slot) + used]

    def _note(self, slot: int) -> int:
        used = max(self._view.used(slot), 64)
        if used > self._touched.get(slot, 0):
            self._touched[slot] = used
            self.touched, self._largest = sum(self._touched.values()), max(self._touched.values())
        return used


class Registrar:
    """Keeps the memory of slots registered with a device, page-locked for good; a slot that grew is registered anew."""

    def __init__(self, device: Pins, slot_bytes: int) -> None:
        """Start with nothing registered. ``slot_bytes``: of each, behind which the next one begins."""
        self._device, self._slot_bytes = device, slot_bytes
        self._registered: dict[int, int] = {}

    def ensure(self, address: int, size: int) -> None:
        """The ``size`` bytes from ``address`` on are registered."""
        known = self._registered.get(address, 0)
        if known >= size:
            return
        if known:
            self._device.finish()
            self._device.unregister(address)
            del self._registered[address]
        # Registering takes milliseconds: a slot that grew may grow again, but not into the next one, which a driver
        # would refuse to register twice. Where address space is limited, slots are hardly larger than batches.
        wanted = min(self._slot_bytes, -(-(size + (size // 4 if known else 0)) // 4096) * 4096)
        self._registered[address] = wanted  # first: whatever interrupts this, nothing is registered twice
        try:
            self._device.register(address, wanted)
        except Exception:
            del self._registered[address]
            raise

    def close(self) -> None:
        """Unregister everything, once all copies are done. What raises keeps nothing else from being unregistered.

        The first error is raised: what a broken device says after it only follows from it.
        """
        first: BaseException | None = None
        try:
            self._device.finish()
        except BaseException as error:  # noqa: BLE001  (raised below)
            first = error
        while self._registered:
            try:
                self._device.unregister(self._registered.popitem()[0])
            except BaseException as error:  # noqa: BLE001
                first = first or error
        if first is not None:
            raise first


class Slab:
    """A reservation with its slots, registered with a device if there is one."""

    def __init__(self, limit: int, device: Pins | None, extent: Extent) -> None:
        """Reserves address space; memory is used as batches are written."""
        self.extent = extent
        self.memory = Reservation.of(extent)
        registrar = Registrar(device, self.memory.slot_bytes) if device is not None else None
        self.slots = Slots(self.memory, limit, registrar.ensure if registrar is not None else None)
        self._finalizer = weakref.finalize(self, _give_back, self.memory, registrar, os.getpid())

    def flat(self, address: int, size: int) -> torch.Tensor | None:
        """A tensor of so many bytes of the slab, for a copy; None for an address elsewhere."""
        offset = address - self.slots.base
        if offset < 0 or offset + size > len(self.memory.map):
            return None
        return torch.frombuffer(self.memory.map, dtype=torch.uint8, count=size, offset=offset)

    def serves(self, device: Pins | None, extent: Extent) -> bool:
        """True if the slab fits the work: memory registered with a device must not be taken for the user's own
        pinned memory.
        """
        return self.extent == extent and self.slots.is_registered == (device is not None)

    def close(self) -> None:
        """Give it back. Batches the user still holds stay valid."""
        self._finalizer()


def _give_back(memory: Reservation, registrar: Registrar | None, owner: int) -> None:
    """Unregister first: an address that stays registered cannot be registered by whoever gets it next.

    A forked process lets go of its view of the memory only.
    """
    try:
        if registrar is not None and os.getpid() == owner:
            registrar.close()
    finally:
        memory.close()
