"""Ragged batches given to the device: two launches for one, four where contrast is changed, which needs means first.

Imported only where there is a CUDA device; forked children must not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton

from headrace.engine.pixels import kernels
from headrace.engine.pixels import view as V
from headrace.engine.pixels.recipe import Padding, Recipe

TALL, WIDE, SUM = 4, 128, 1024
"""What one program does: so many rows and columns; and pixels at once of a mean."""


class LaunchTable(NamedTuple):
    """What the kernels are told of each picture, on the device."""

    places: torch.Tensor
    """Address and strides."""
    offsets: torch.Tensor
    """Where what lies between the two directions begins."""
    numbers: torch.Tensor
    sent: torch.Tensor
    """What these are views of."""
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    rows: int
    """Most that any of them needs."""
    size: int
    """Elements of what lies between."""


def table(pictures: Sequence[torch.Tensor], rows: torch.Tensor, out: torch.Tensor) -> LaunchTable:
    """Of pictures on the device; ``rows`` in host memory. One copy, on the current stream, which is not waited for."""
    count, width, device = len(pictures), out.shape[3], out.device
    needed = rows[:, V.MID_N].to(torch.int64)
    ends = (needed * (3 * width)).cumsum(0)
    words, half = 5 * count, V.COLUMNS * count // 2
    host = torch.empty(words + half, dtype=torch.int64, pin_memory=device.type == "cuda")
    host[: 4 * count].view(count, 4).copy_(torch.tensor([[each.data_ptr(), *each.stride()] for each in pictures]))
    host[4 * count : words] = ends - needed * (3 * width)
    host[words:].view(torch.float32).view(count, V.COLUMNS).copy_(rows)
    there = host.to(device, non_blocking=True)
    numbers = there[words:].view(torch.float32)
    return LaunchTable(
        there[: 4 * count], there[4 * count : words], numbers, there, count, int(needed.max()), max(1, int(ends[-1]))
    )


def render(table: LaunchTable, recipe: Recipe, out: torch.Tensor) -> list[Any]:
    """See ``twin.render``. Returns what must live until the device has done it."""
    device, height, width = out.device, out.shape[2], out.shape[3]
    places, offsets, numbers, _, count, most, size = table
    mid = torch.empty(size, dtype=torch.uint8 if recipe.rounds else torch.float32, device=device)
    columns = triton.cdiv(width, WIDE)
    kernels.across[columns, triton.cdiv(max(most, 1), TALL), count](
        places, numbers, offsets, mid, width, *recipe.before.fill,
        CUBIC=recipe.cubic, ROUNDS=recipe.rounds, BEFORE=int(recipe.before.filling), AFTER=int(recipe.after.filling),
        TALL=TALL, WIDE=WIDE,
    )  # fmt: skip
    grid = (columns, triton.cdiv(height, TALL), count)
    ending = (height, width, *out.stride())
    values = (*_three(recipe.scale), *_three(recipe.shift))
    kinds = {
        "COUNT": recipe.operations,
        "FLOORS": recipe.floors,
        "PILLOW": recipe.pillow,
        "CHANNELS": recipe.channels,
        "TALL": TALL,
        "WIDE": WIDE,
    }
    flat = torch.empty((count, 3, height, width) if recipe.contrast else (1,), dtype=torch.float32, device=device)
    kernels.down[grid](
        numbers, offsets, mid, out, flat, *ending, *recipe.after.fill, *values,
        CUBIC=recipe.cubic, ROUNDS=recipe.rounds, AFTER=int(recipe.after.filling), TO_FLAT=recipe.contrast, **kinds,
    )  # fmt: skip
    kept = [mid, flat]
    if recipe.contrast:
        means = torch.empty(count, dtype=torch.float32, device=device)
        kernels.means[count,](
            numbers, flat, means, height * width,
            COUNT=recipe.operations, FLOORS=recipe.floors, PILLOW=recipe.pillow, SIZE=SUM,
        )  # fmt: skip
        kernels.finish[grid](numbers, flat, means, out, *ending, *values, **kinds)
        kept.append(means)
    return kept


def nearest(
    masks: Sequence[torch.Tensor], rows: torch.Tensor, before: Padding, after: Padding, out: torch.Tensor
) -> list[Any]:
    """See ``twin.nearest``."""
    device, (count, height, width) = out.device, out.shape
    places = _sent(torch.tensor([[each.data_ptr(), 0, *each.stride()] for each in masks]), device)
    numbers = _sent(rows, device)
    kernels.pick[triton.cdiv(width, WIDE), triton.cdiv(height, TALL), count](
        places, numbers, out, height, width, int(before.fill[0]), int(after.fill[0]),
        BEFORE=int(before.filling), AFTER=int(after.filling), TALL=TALL, WIDE=WIDE,
    )  # fmt: skip
    return [places, numbers]


def _sent(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, without waiting for it."""
    if device.type != "cuda":
        return table.contiguous()
    return table.contiguous().pin_memory().to(device, non_blocking=True)


def _three(values: tuple[float, ...]) -> tuple[float, float, float]:
    return (values * 3)[:3] if len(values) == 1 else values  # type: ignore[return-value]
