"""Pinned batches: copied out of the slab into blocks of torch's own allocator.

That allocator knows which streams read a block, and gives it out again when they have, however early the tensors are
let go. Nobody could know that of the slab. Small batches are copied at once; large ones by a thread, while the trainer
is at work on the batches before them: 38.5 MB take several milliseconds, and the copy needs no interpreter.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.devices.jobthread import JobThread
from headrace.engine.memory.pieces import Allocate, Flat, Move, moved

AT_ONCE = 1 << 20
"""Bytes that are copied before ``copy`` returns: less than waking a thread and waiting for it is worth."""


class Copying:
    """A batch that a thread copies. Reached with ``done``; ``error`` is what went wrong, if anything did."""

    __slots__ = ("done", "error", "moves")

    def __init__(self, moves: list[Move]) -> None:
        """Take the moves that are still to be made."""
        self.moves = [(target.numpy(), source.numpy()) for target, source in moves]
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Copy. numpy does so with the interpreter let go, and by this thread alone."""
        try:
            for target, source in self.moves:
                np.copyto(target, source)
        except BaseException as error:  # noqa: BLE001  (raised in the trainer, where the batch is asked for)
            self.error = error
        finally:
            self.moves.clear()
            self.done.set()


_DONE = Copying([])
_DONE.done.set()


def _work(jobs: Iterator[Copying]) -> None:
    for copying in jobs:
        copying.run()
        del copying


class Pinning:
    """Implements ``Carrier``: from the slab to pinned memory of this process."""

    def __init__(
        self,
        block: Allocate | None = None,
        alone: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """``block`` allocates pinned memory, ``alone`` pins a tensor that is not in the slab: torch's, unless given."""
        self._block = block or _pinned
        self._alone = alone or torch.Tensor.pin_memory
        self._thread = JobThread("headrace pinning", _work)

    def copy(self, batch: Any, flat: Flat) -> tuple[Any, Copying]:
        """See ``Carrier``. What a thread copies keeps its own hold of both sides."""
        there, moves = moved(batch, flat, self._block, self._alone, pinning=True)
        if sum(source.nbytes for _, source in moves) <= AT_ONCE:
            for target, source in moves:
                target.copy_(source)
            return there, _DONE
        copying = Copying(moves)
        self._thread.start()
        self._thread.put(copying)
        return there, copying

    def is_light(self, mark: Copying) -> bool:
        """See ``Carrier``."""
        return mark is _DONE

    def waits_for(self, mark: Copying) -> Callable[[], object] | None:
        """See ``Carrier``: the user may read it at once."""
        return None if mark.done.is_set() else mark.done.wait

    def hand_over(self, batch: Any, mark: Copying) -> Any:
        """See ``Carrier``."""
        if mark.error is not None:
            raise mark.error
        return batch

    def reached(self, mark: Copying) -> bool:
        """See ``Carrier``."""
        return mark.done.is_set()

    def took(self, mark: Copying) -> int | None:
        """See ``Carrier``; not known."""
        return None

    def spans(self, mark: Copying) -> list[tuple[str, int]]:
        """See ``Carrier``: nothing."""
        return []

    def release(self, mark: Copying) -> None:
        """See ``Carrier``; there is nothing to use again."""

    def finish(self) -> None:
        """See ``Carrier``."""
        self._thread.finish()


def _pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, pin_memory=True)


def pinning() -> Pinning | None:
    """Pinning for ``pin_memory=True``; None without an accelerator, as in torch."""
    return Pinning() if torch.accelerator.is_available() else None
