"""Slots of the slab as a device knows them: page-locked for good."""

from headrace.engine.device.accelerator import Accelerator


class Registrar:
    """Keeps the memory of slots registered; a slot that grew is registered anew."""

    def __init__(self, device: Accelerator, slot_bytes: int) -> None:
        """Nothing is registered yet. ``slot_bytes``: of each, behind which the next one begins."""
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
