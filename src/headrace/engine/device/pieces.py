"""Which tensors of a batch are copied in one go: neighbours in the slab, as long as they are small.

Tensors copied together share a block, and whoever keeps one of them keeps the block. So only small ones are: a list of
every batch's labels must not hold its images.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from headrace.engine.device.containers import mapped, tensors

TOGETHER = 64 << 10
"""Bytes that tensors may take together to be copied as one."""
ALIGN = 64

Flat = Callable[[int, int], torch.Tensor | None]
"""(address, size): that much of the slab as bytes; None where it is other memory."""
Move = tuple[torch.Tensor, torch.Tensor]
"""(target, source) of a copy."""


class Span(NamedTuple):
    """Where a tensor lies: its address, its bytes, and its place in the batch."""

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
    block: Callable[[int], torch.Tensor],
    alone: Callable[[torch.Tensor], torch.Tensor],
    *,
    pinning: bool = False,
) -> tuple[Any, list[Move]]:
    """The batch elsewhere, and the copies of bytes that are still to be made into it.

    ``block`` allocates bytes there; ``alone`` sees to a tensor that does not lie flat in the slab.
    """
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
        memory = block(room)
        moves.append((memory if room == size else memory[:size], source))
        for span in group:
            there[span.place] = _view(memory, span.start - start, found[span.place])
    made = iter([alone(tensor) if view is None else view for tensor, view in zip(found, there, strict=True)])
    return mapped(batch, lambda _: next(made), pinning=pinning), moves


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
