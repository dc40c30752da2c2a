"""Ragged batches given to the device: two launches for one, four where contrast is changed, which needs means first.

Imported only where there is a CUDA device; forked children must not. What is made here on the host is made by numpy:
each of torch's operations lets go of the interpreter, and may wait a long time for it where a training loop is busy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from headrace.ondevice.pixels import kernels
from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.kernels import NUMBERS, RECORD
from headrace.ondevice.pixels.recipe import Recipe
from headrace.ondevice.pixels.view import Padding

TALL, WIDE, SUM = 4, 128, 1024
"""What one program does: so many rows and columns; and pixels at once of a mean."""
Array = np.ndarray[Any, np.dtype[Any]]


class LaunchTable(NamedTuple):
    """The kernels' instructions for each picture: a record for each, see ``kernels.RECORD``."""

    there: torch.Tensor
    """On the device."""
    host: torch.Tensor
    """What it is copied from: pinned, and to be left alone until that is done."""
    rows: int
    """Most that any of them needs."""
    size: int
    """Elements of what lies between the two directions."""


def table(pictures: Sequence[torch.Tensor], rows: Array, width: int, device: torch.device) -> LaunchTable:
    """The launch table of pictures, or masks, on the device; ``width``: of the results. Copied by the current
    stream, not waited for.
    """
    count = len(pictures)
    host = torch.empty((count, RECORD), dtype=torch.int64, pin_memory=device.type == "cuda")
    records: Array = host.numpy()
    records[:, 0] = [each.data_ptr() for each in pictures]
    if all(each.is_contiguous() for each in pictures):
        sizes = rows[:, V.HEIGHT : V.WIDTH + 1].astype(np.int64)
        records[:, 1], records[:, 2], records[:, 3] = sizes[:, 0] * sizes[:, 1], sizes[:, 1], 1
    else:
        records[:, 1:4] = [(0, *each.stride())[-3:] for each in pictures]
    needed = rows[:, V.MID_N].astype(np.int64)
    ends = (needed * (3 * width)).cumsum()
    records[:, 4] = ends - needed * (3 * width)
    records[:, NUMBERS:].view(np.float32)[:] = rows
    there = host.to(device, non_blocking=True)
    return LaunchTable(there, host, int(needed.max()), max(1, int(ends[-1])))


def render(table: LaunchTable, recipe: Recipe, out: torch.Tensor) -> list[Any]:
    """See ``twin.render``. Returns what must live until the device has done it."""
    device, (count, _, height, width) = out.device, out.shape
    there, _, most, size = table
    mid = torch.empty(size, dtype=torch.uint8 if recipe.rounds else torch.float32, device=device)
    columns = triton.cdiv(width, WIDE)
    kernels.across[columns, triton.cdiv(max(most, 1), TALL), count](
        there, mid, width, *recipe.before.fill,
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
    flat = mid
    if recipe.contrast:
        flat = torch.empty((count, 3, height, width), dtype=torch.float32, device=device)
    kernels.down[grid](
        there, mid, out, flat, *ending, *recipe.after.fill, *values,
        CUBIC=recipe.cubic, ROUNDS=recipe.rounds, AFTER=int(recipe.after.filling), TO_FLAT=recipe.contrast, **kinds,
    )  # fmt: skip
    if not recipe.contrast:
        return [mid]
    means = torch.empty(count, dtype=torch.float32, device=device)
    kernels.means[count,](
        there, flat, means, height * width,
        COUNT=recipe.operations, FLOORS=recipe.floors, PILLOW=recipe.pillow, SIZE=SUM,
    )  # fmt: skip
    kernels.finish[grid](there, flat, means, out, *ending, *values, **kinds)
    return [mid, flat, means]


def nearest(table: LaunchTable, before: Padding, after: Padding, out: torch.Tensor) -> None:
    """See ``twin.nearest``; ``table``: of the masks."""
    count, height, width = out.shape
    kernels.pick[triton.cdiv(width, WIDE), triton.cdiv(height, TALL), count](
        table.there, out, height, width, int(before.fill[0]), int(after.fill[0]),
        BEFORE=int(before.filling), AFTER=int(after.filling), TALL=TALL, WIDE=WIDE,
    )  # fmt: skip


def _three(values: tuple[float, ...]) -> tuple[float, float, float]:
    return (values * 3)[:3] if len(values) == 1 else values  # type: ignore[return-value]
