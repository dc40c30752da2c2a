"""An accelerator made of ordinary memory, whose copies are done when the test says so."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.engine.memory.pieces import Flat, Move, moved


@dataclass(eq=False, slots=True)
class ScriptedMark:
    """One batch on its way. Nothing of it has arrived before it is reached."""

    number: int
    moves: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    reached: bool = False
    released: bool = False


class ScriptedAccelerator:
    """Implements ``headrace.devices.accelerator.Accelerator`` on the CPU.

    A copy reads its source only when it is reached, by ``advance`` or ``finish``, and does not keep it alive: host
    memory that is used again too early arrives as what became of it. ``log`` holds what was asked for, in order.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.registered: dict[int, int] = {}
        self.marks: list[ScriptedMark] = []
        """Copies that were started and not let go of."""
        self._copies = 0
        self.light = False
        """What is said of batches."""
        self.before_finish: Callable[[], None] | None = None
        """Called when somebody waits for all copies."""

    @property
    def under_way(self) -> int:
        """Copies that were started and have not arrived."""
        return sum(not mark.reached for mark in self.marks)

    def advance(self, count: int = 1) -> None:
        """Let the oldest ``count`` copies arrive."""
        for mark in [mark for mark in self.marks if not mark.reached][:count]:
            for target, source in mark.moves:
                target.copy_(source)
            mark.moves.clear()
            mark.reached = True

    def register(self, address: int, size: int) -> None:
        """See ``Accelerator``; refuses memory that is registered already, as a driver does."""
        for start, length in self.registered.items():
            if address < start + length and start < address + size:
                raise RuntimeError(f"{size} bytes at {address:#x} overlap what is registered")
        self.log.append(("register", size))
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        """See ``Accelerator``; refuses while a copy is under way."""
        if self.under_way:
            raise RuntimeError("unregistered while copies are under way")
        self.log.append(("unregister", self.registered.pop(address)))

    def copy(self, batch: Any, flat: Flat) -> tuple[Any, ScriptedMark]:
        single: list[Move] = []

        def block(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype)

        def alone(tensor: torch.Tensor) -> torch.Tensor:
            there = torch.zeros_like(tensor)
            if tensor.numel():
                single.append((there, tensor))
            return there

        there, moves = moved(batch, flat, block, alone)
        mark = ScriptedMark(self._copies, [(target, _alias(source)) for target, source in (*moves, *single)])
        self._copies += 1
        self.marks.append(mark)
        self.log.append(("copy", mark.number))
        return there, mark

    def is_light(self, mark: ScriptedMark) -> bool:
        return self.light

    def waits_for(self, mark: ScriptedMark) -> None:
        """See ``Carrier``: nothing."""

    def hand_over(self, batch: Any, mark: ScriptedMark) -> Any:
        self.log.append(("hand over", mark.number))
        return batch

    def reached(self, mark: ScriptedMark) -> bool:
        return mark.reached

    def took(self, mark: ScriptedMark) -> int | None:
        """See ``Carrier``; not known here."""
        return None

    def spans(self, mark: ScriptedMark) -> list[tuple[str, int]]:
        """See ``Carrier``: nothing."""
        return []

    def release(self, mark: ScriptedMark) -> None:
        """See ``Carrier``; refuses what is under way, and what was released before."""
        if not mark.reached or mark.released:
            raise RuntimeError(f"copy {mark.number} is released twice, or while it is under way")
        mark.released = True
        if mark in self.marks:  # not let go of by ``finish``
            self.marks.remove(mark)

    def finish(self) -> None:
        self.log.append(("finish", self.under_way))
        if self.before_finish is not None:
            self.before_finish()
        self.advance(self.under_way)
        self.marks.clear()


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, unowned: what a device has of a host tensor is its address."""
    storage = tensor.untyped_storage()
    raw = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(raw, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
