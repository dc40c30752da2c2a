"""The native twin of the ledger's hot operations, where it was built: the same methods, each one call of C.

The module takes the lock itself and never waits for an interpreter while it holds it. What is not here is Python's, on
either side, under the same lock.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.sched import ledger_layout as W
from headrace.sched.epochs.publication import Batch
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.lanes.claims import Claimed
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.lanes.lane_messages import Filed, TakeSize, Visit, Written
from headrace.sched.ledger_layout import Dims, Words

built: Any = None
if "t" not in sys.abiflags:  # objects of free-threaded builds are laid out otherwise than in the stable interface
    with suppress(ImportError):
        from headrace.sched import native as built  # type: ignore[attr-defined, no-redef, unused-ignore]
module: Any = built if built is not None and built.WORDS == W.VERSION else None
"""The native module; None where it was not built, or from other words than these."""


def mutex(words: Words) -> Any:
    """The lock among the words."""
    return module.Mutex(words, W.MUTEX)


def _ledger(words: Words, dims: Dims, locks: bool, fuse: Any) -> Any:
    places = [dims.ring, dims.order, dims.fill, dims.retry, dims.hole, dims.group0, dims.group_stride, dims.index0]
    places += [dims.ticket0, dims.slot0, dims.slot_stride, dims.row_ticket0, dims.row_state0]
    places += [dims.lane(0), dims.lane(1) - dims.lane(0), dims.lanes, dims.groups, dims.slots, dims.rows, dims.words]
    return module.Ledger(words, places, W.MUTEX if locks else -1, fuse)


class NativeLane(LaneLedger):
    """A worker's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lane: int, lock: Any = None, fuse: Any = None) -> None:
        """``lock``: the mutex among the words, for what is Python's here; None: nobody else is there (tests)."""
        super().__init__(words, dims, lane, lock)
        self._native = _ledger(getattr(words, "buffer", words), dims, lock is not None, fuse)

    def visit(self, written: Written | None, made: tuple[int, int, int] | None, size: TakeSize) -> Visit:
        return Visit(*self._native.visit(self.facts.lane_number, written, made, *size))

    def finish(self, written: Written) -> Filed:
        return Filed(*self._native.finish(self.facts.lane_number, written))

    def _claim(self, want: int) -> Claimed:
        found: Claimed = self._native.claim(self.facts.lane_number, want, *self._sized)
        return found

    def _shape(self, slot: int, layout: int, size: int) -> int:
        return int(self._native.shape(slot, layout, size))

    def reserve(self, slot: int, size: int, most: int = W.NEVER) -> int:
        return int(self._native.reserve(slot, size, most))

    def ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        return bool(self._native.ready(self.facts.lane_number, slot, offset, size, failed))


class NativeTrainer(TrainerLedger):
    """The trainer's view of the ledger."""

    def __init__(self, words: Words, dims: Dims, lock: Any = None, fuse: Any = None) -> None:
        super().__init__(words, dims, lock)
        self._native = _ledger(getattr(words, "buffer", words), dims, lock is not None, fuse)

    def publish(self, batch: Batch, lanes: int, ahead: Sequence[int] = (), *, relaxed: bool = False) -> list[int]:
        woken: list[int] = self._native.publish(*batch[:7], batch.free_order, lanes, relaxed, ahead)
        return woken

    def wake(self, lanes: int) -> list[int]:
        woken: list[int] = self._native.wake(lanes)
        return woken

    def look(self, slots: Sequence[int]) -> int | None:
        found = int(self._native.look(slots))
        return None if found < 0 else found

    def is_busy(self, slot: int, lanes: int) -> bool:
        return bool(self._native.is_busy(lanes, slot))
