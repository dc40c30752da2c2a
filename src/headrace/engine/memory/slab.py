"""The shared memory of one iteration and everything that hangs on it. Recycled from one iteration to the next."""

import os
import threading
import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from headrace.engine.device.accelerator import Accelerator
from headrace.engine.device.registrar import Registrar
from headrace.engine.memory.reservation import Extent, Reservation
from headrace.engine.memory.slots import Slots


class Slab:
    """A reservation with its slots, registered with a device if there is one."""

    def __init__(self, limit: int, device: Accelerator | None, extent: Extent) -> None:
        """Reserves address space; memory is used as batches are written."""
        self.extent = extent
        self.memory = Reservation.of(extent)
        registrar = Registrar(device) if device is not None else None
        self.slots = Slots(self.memory, limit, registrar.ensure if registrar is not None else None)
        first: Any = np.frombuffer(self.memory.map, np.uint8, 1)
        self._start, self._size = first.ctypes.data, len(self.memory.map)
        self._finalizer = weakref.finalize(self, _give_back, self.memory, registrar, os.getpid())

    def flat(self, address: int, size: int) -> torch.Tensor | None:
        """That much of the slab as bytes, for a copy; None when it lies elsewhere."""
        offset = address - self._start
        if offset < 0 or offset + size > self._size:
            return None
        return torch.frombuffer(self.memory.map, dtype=torch.uint8, count=size, offset=offset)

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


class SpareSlabs:
    """Slabs between iterations: memory that is already faulted in costs nothing to use again. For any thread."""

    def __init__(self) -> None:
        """Empty."""
        self._slabs: list[Slab] = []
        self._closed = False
        self._owner = os.getpid()
        self._lock = threading.RLock()  # an iteration may be collected, and put its slab here, in any step

    def take(self, limit: int, device: Accelerator | None, extent: Extent) -> Slab:
        """A slab that lay here, or a new one. What lies here in a forked process is still the other one's to use."""
        if os.getpid() != self._owner:
            self._slabs, self._owner, self._lock = [], os.getpid(), threading.RLock()
        with self._lock:
            self._closed = False
            if self._slabs:
                last = self._slabs[-1]
                # Memory that is registered must not be taken for the user's own pinned memory.
                if last.extent != extent or last.slots.is_registered != (device is not None):
                    self._slabs.pop().close()
            return self._slabs.pop() if self._slabs else Slab(limit, device, extent)

    def put(self, slab: Slab) -> None:
        """Keep one for the next iteration; further ones are given back."""
        with self._lock:
            if self._closed or self._slabs or slab.memory.stays:
                slab.close()
            else:
                self._slabs.append(slab)

    def close(self) -> None:
        """Give everything back."""
        with self._lock, ExitStack() as rest:
            self._closed = True
            while self._slabs:
                rest.callback(self._slabs.pop().close)
