"""A device's part in an iteration: batches are copied there ahead, or into pinned memory."""

from headrace.devices.accelerator import accelerator
from headrace.devices.ahead import AHEAD, Ahead
from headrace.devices.pinning import pinning
from headrace.engine.memory.pieces import Flat, no_slab
from headrace.engine.memory.slab import Slab
from headrace.engine.plugs import EpochRecord, Part, PartFacts
from headrace.sched.hand import EpochRun


class DevicePart(Part):
    """See ``Part``."""

    def __init__(self, facts: PartFacts) -> None:
        """Raises ``DeviceUnavailable`` where ``device=`` names none."""
        self._facts, settings = facts, facts.settings
        timed = settings.traced
        self._accelerator = None if settings.device is None else accelerator(settings.device, timed=timed)
        self.pins = self._accelerator
        self._pinning = pinning() if settings.pin_memory and self._accelerator is None else None

    def run(self, run: EpochRun, record: EpochRecord | None, slab: Slab | None) -> EpochRun:
        """See ``Part``."""
        flat, ahead = flat_of(slab, AHEAD)
        if self._accelerator is not None:
            return Ahead(run, self._accelerator, self._facts.step, flat, trace=record, ahead=ahead)
        return run if self._pinning is None else Ahead(run, self._pinning, self._facts.step, flat, ahead=ahead)

    def end(self, *, broken: bool) -> None:
        """See ``Part``."""
        self._accelerator = self._pinning = self.pins = None  # a loader knows its last iteration


def flat_of(slab: Slab | None, ahead: int) -> tuple[Flat, int]:
    """The slab's memory, and how many batches are taken early; without workers, nothing is made early."""
    return (no_slab, 1) if slab is None else (slab.flat, ahead)
