"""``default_collate`` inside a worker, without memory of its own: batches are stacked where they will be sent from."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate

Allocate = Callable[[torch.Size, torch.dtype], torch.Tensor | None]
Locate = Callable[[torch.Tensor], int | None]

_TORCH_STACK = torch_collate.collate_tensor_fn
_STANDARD = dict(torch_collate.default_collate_fn_map)


def is_standard(collate_fn: Any) -> bool:
    """Whether ``collate_fn`` is torch's default and nobody changed what that does."""
    known = torch_collate.default_collate_fn_map
    same = all(known.get(kind) in (function, _stack) for kind, function in _STANDARD.items())
    return collate_fn is default_collate and same and len(known) == len(_STANDARD)


def install(allocate: Allocate, locate: Locate) -> None:
    """Make torch's collation in this process stack tensors into memory from ``allocate``; ``locate`` finds them there.

    torch's own function would create a new shared memory file per tensor and batch, in ``/dev/shm``. A stacking
    function that the user registered is left alone.
    """
    global _allocate, _locate  # one worker, one loop: torch's registry is as global
    _allocate, _locate = allocate, locate
    if torch_collate.default_collate_fn_map[torch.Tensor] is _TORCH_STACK:
        torch_collate.default_collate_fn_map[torch.Tensor] = _stack


# Outside a worker, where nothing is installed: a batch has ordinary memory.
_allocate: Allocate = lambda _shape, _dtype: None  # noqa: E731
_locate: Locate = lambda _: None  # noqa: E731


def allocated(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
    """Memory where the batch being collated will be sent from; None where there is none."""
    return _allocate(shape, dtype)


def is_there(tensor: torch.Tensor) -> bool:
    """Whether it lies where the batch being collated will be sent from, and so need not be copied."""
    return _locate(tensor) is not None


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided or not first.is_cpu:
        refused: torch.Tensor = _TORCH_STACK(batch, collate_fn_map=collate_fn_map)
        return refused
    if first.is_quantized:  # whose memory cannot be lent to it
        return torch.stack(batch, 0)
    size = torch.Size((len(batch), *first.shape))
    out = _allocate(size, first.dtype) if type(first) is torch.Tensor else None
    # torch stacks into the first sample's dtype too, with the same errors for unequal sizes and tensors with gradients.
    return torch.stack(batch, 0, out=first.new_empty(size) if out is None else out)
