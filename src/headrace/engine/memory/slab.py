"""The shared memory of one iteration and everything that hangs on it. Recycled from one iteration to the next."""

import weakref

from headrace.engine.device.accelerator import Accelerator, Registrar
from headrace.engine.memory.reservation import Reservation
from headrace.engine.memory.slots import Slots


class Slab:
    """A reservation with its slots, registered with a device if there is one."""

    def __init__(self, limit: int, device: Accelerator | None) -> None:
        """Reserves address space; memory is used as batches are written."""
        self.memory = Reservation()
        registrar = Registrar(device) if device is not None else None
        self.slots = Slots(self.memory, limit, registrar.ensure if registrar is not None else None)
        self._finalizer = weakref.finalize(self, _give_back, self.memory, registrar)

    def close(self) -> None:
        """Give it back. Batches the user still holds stay valid."""
        self._finalizer()


def _give_back(memory: Reservation, registrar: Registrar | None) -> None:
    """Unregister first: an address that stays registered cannot be registered by whoever gets it next."""
    try:
        if registrar is not None:
            registrar.close()
    finally:
        memory.close()


class Shelf:
    """Slabs between iterations: memory that is already faulted in costs nothing to use again."""

    def __init__(self) -> None:
        """Empty."""
        self._slabs: list[Slab] = []
        self._closed = False

    def take(self, limit: int, device: Accelerator | None) -> Slab:
        """A slab that lay here, or a new one."""
        self._closed = False
        return self._slabs.pop() if self._slabs else Slab(limit, device)

    def put(self, slab: Slab) -> None:
        """Keep one for the next iteration; further ones are given back."""
        if self._closed or self._slabs:
            slab.close()
        else:
            self._slabs.append(slab)

    def close(self) -> None:
        """Give everything back."""
        self._closed = True
        while self._slabs:
            self._slabs.pop().close()
