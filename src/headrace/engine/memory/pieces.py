"""Blocks of a batch's tensors that are copied in one go: neighbours in the slab, as long as they are small.

Tensors copied together share a block, and whoever keeps one of them keeps the block. So only small ones are: a list of
every batch's labels must not hold its images.

Of a batch that lies in its slot in rows, where each tensor is follows from the layout alone. So it is found out once
for all batches of a layout and a size (``crossing``), and none of them is unpacked in the host's memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from headrace.engine.memory.containers import mapped, tensors
from headrace.engine.memory.layout import Layout, Leaf, Node

TOGETHER = 64 << 10
"""Bytes that tensors may take together to be copied as one."""
ALIGN = 64

Move = tuple[torch.Tensor, torch.Tensor]
"""(target, source) of a copy."""
Allocate = Callable[[int, torch.dtype], torch.Tensor]
"""So many elements of a type, one after the other."""
Flat = Callable[[int, int], torch.Tensor | None]
"""(address, size): that much of the slab as bytes; None where it is other memory."""


class Block(NamedTuple):
    """Bytes of a slot that are copied as one."""

    start: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    dtype: torch.dtype
    """So many of this type, which is that of the first tensor in it."""
    tensors: tuple[tuple[int, torch.dtype | None, tuple[int, ...], tuple[int, ...], int], ...]
    """Place among all of the batch, type if it is another, shape, strides, elements of the type before it."""


class Crossing:
    """Plan for copying batches of one layout with one number of rows to a device."""

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
        for (_, count, kind, places), source in zip(crossing.blocks, self._sources, strict=True):
            memory = block(count, kind)
            moves.append((memory, source))
            for place, dtype, shape, stride, offset in places:
                typed = memory if dtype is None else memory.view(dtype)
                there[place] = typed.as_strided(shape, stride, offset)
        return crossing.build(there), moves


class Span(NamedTuple):
    """Place of a tensor: its address, its bytes, and its position in the batch."""

    start: int
    size: int
    place: int


def joined(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans by address, those together that fit into one small block and keep their alignment in it."""
    groups: list[list[Span]] = []
    first, end = 0, 0
    for span in sorted(spans):
        reach = max(end, span.start + span.size)
        if groups and reach - first <= TOGETHER and not (span.start - first) % ALIGN:
            groups[-1].append(span)
            end = reach
        else:
            groups.append([span])
            first, end = span.start, span.start + span.size
    return groups


def no_slab(_address: int, _size: int) -> None:
    """The ``Flat`` of batches that lie in ordinary memory."""


def moved(
    batch: Any,
    flat: Flat,
    block: Allocate,
    alone: Callable[[torch.Tensor], torch.Tensor],
    *,
    pinning: bool = False,
) -> tuple[Any, list[Move]]:
    """The batch elsewhere, and the copies of bytes that are still to be made into it.

    ``block`` allocates memory there; ``alone`` sees to a tensor that does not lie flat in the slab.
    """
    if type(batch) is RowBlock:
        return batch.moved(block)
    found = tensors(batch, pinning=pinning)
    there: list[torch.Tensor | None] = [None] * len(found)
    moves: list[Move] = []
    for group in joined([Span(t.data_ptr(), t.nbytes, i) for i, t in enumerate(found) if _is_flat(t)]):
        start, size, _ = group[0]
        for span in group[1:]:
            size = max(size, span.start + span.size - start)
        source = flat(start, size)
        if source is None:
            continue
        room = -(-size // ALIGN) * ALIGN  # a whole number of any type
        memory = block(room, torch.uint8)
        moves.append((memory if room == size else memory[:size], source))
        for span in group:
            there[span.place] = _view(memory, span.start - start, found[span.place])
    made = iter([alone(tensor) if view is None else view for tensor, view in zip(found, there, strict=True)])
    return mapped(batch, lambda _: next(made), pinning=pinning), moves


def nbytes(batch: Any) -> int:
    """Bytes of a batch's tensors."""
    return batch.crossing.nbytes if type(batch) is RowBlock else sum(tensor.nbytes for tensor in tensors(batch))


def crossing(layout: Layout, rows: int) -> Crossing | None:
    """The copying plan of batches of so many rows; None where their tensors have to be looked at one by one.

    That is where one of them has no bytes, or where one of their containers is a class of the user's.
    """
    leaves, (offsets, _) = layout.leaves, layout.plan(rows)
    if not _is_plain(layout.shape) or not all(leaf.row_bytes * rows for leaf in leaves):
        return None
    spans = [Span(offset, leaves[i].row_bytes * rows, i) for i, offset in enumerate(offsets)]
    shape = layout.shape
    flat = isinstance(shape, Node) and shape.kind is not dict and all(isinstance(each, Leaf) for each in shape.children)
    return Crossing(
        tuple(_block(group, leaves, rows) for group in joined(spans)),
        len(leaves),
        sum(span.size for span in spans),
        _itself if flat else layout.batch,
    )


def _block(group: list[Span], leaves: list[Leaf], rows: int) -> Block:
    """The block up to where the next leaf begins or would, which is a whole number of any type."""
    start, kind = group[0].start, leaves[group[0].place].dtype
    end = max(span.start + span.size for span in group)
    tensors = []
    for span in group:
        leaf = leaves[span.place]
        shape = (rows, *leaf.shape)
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        other = None if leaf.dtype is kind else leaf.dtype
        offset = (span.start - start) // leaf.dtype.itemsize
        tensors.append((span.place, other, shape, strides, offset))
    return Block(start, -(-(end - start) // ALIGN) * ALIGN // kind.itemsize, kind, tuple(tensors))


def _is_plain(shape: Leaf | Node) -> bool:
    if isinstance(shape, Leaf):
        return True
    return shape.kind in (tuple, list, dict) and all(map(_is_plain, shape.children))


def _itself(tensors: list[Any]) -> Any:
    """The list itself: ``default_collate`` makes a list of a tuple."""
    return tensors


def _view(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    typed = memory.view(like.dtype)
    return typed.as_strided(like.shape, like.stride(), offset // like.dtype.itemsize)


def _is_flat(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.is_complex() and tensor.is_conj())
        and not tensor.is_neg()
        and not tensor.is_quantized
    )
