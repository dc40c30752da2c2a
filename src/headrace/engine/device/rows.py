"""Batches that go elsewhere as they lie in their slots, in rows: where each tensor is follows from the layout alone.

So it is found out once for all batches of a layout and a size, and none of them is unpacked in the host's memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Move = tuple[torch.Tensor, torch.Tensor]
"""(target, source) of a copy."""
Allocate = Callable[[int, torch.dtype], torch.Tensor]
"""So many elements of a type, one after the other."""


class Block(NamedTuple):
    """Bytes of a slot that are copied as one."""

    start: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    dtype: torch.dtype
    """So many of this type, which is that of the first tensor in it."""
    tensors: tuple[tuple[int, torch.dtype | None, tuple[int, ...], tuple[int, ...], int], ...]
    """Place among all of the batch, type if it is another, shape, strides, elements of the type before it."""


class Crossing:
    """How batches of one layout with one number of rows come elsewhere."""

    __slots__ = ("blocks", "build", "count", "nbytes")

    def __init__(self, blocks: tuple[Block, ...], count: int, nbytes: int, build: Callable[[list[Any]], Any]) -> None:
        """``count`` tensors of so many bytes in all; ``build``: the batch from a list of them, which it may keep."""
        self.blocks, self.count, self.nbytes, self.build = blocks, count, nbytes, build


class RowBlock:
    """A batch in its slot, which is lent to this object and to nothing else.

    ``sources``: what the slot holds, one tensor for each block. They do not keep the slot.
    """

    __slots__ = ("__weakref__", "_sources", "crossing")

    def __init__(self, crossing: Crossing, sources: tuple[torch.Tensor, ...]) -> None:
        """``crossing`` is that of the slot's layout and of the rows it has."""
        self.crossing, self._sources = crossing, sources

    def moved(self, block: Allocate) -> tuple[Any, list[Move]]:
        """See ``pieces.moved``."""
        crossing = self.crossing
        there: list[Any] = [None] * crossing.count
        moves: list[Move] = []
        for (_, count, kind, tensors), source in zip(crossing.blocks, self._sources, strict=True):
            memory = block(count, kind)
            moves.append((memory, source))
            for place, dtype, shape, stride, offset in tensors:
                typed = memory if dtype is None else memory.view(dtype)
                there[place] = typed.as_strided(shape, stride, offset)
        return crossing.build(there), moves
