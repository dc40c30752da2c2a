"""The layout of an array's elements in memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]
_WORK = 10_000


def strides_of(shape: Shape, unit: int) -> Shape:
    """The strides of a new array in C's order, with ``unit`` for a step in the last dimension."""
    found = []
    for length in reversed(shape):
        found.append(unit)
        unit *= max(1, length)
    return tuple(reversed(found))


def spread(shape: Shape, strides: Shape, unit: int) -> tuple[int, int]:
    """The place of the first element, and the span of all of them, in the measure of ``strides`` and ``unit``."""
    if 0 in shape:
        return 0, 0
    steps = [step * (length - 1) for length, step in zip(shape, strides, strict=True)]
    first = -sum(step for step in steps if step < 0)
    return first, first + sum(step for step in steps if step > 0) + unit


def flat(value: Any) -> Any | None:
    """An array's memory in one dimension, where it has neither gaps nor overlaps; else None."""
    if any(step < 0 for step in value.strides):
        value = value[tuple(slice(None, None, -1 if step < 0 else 1) for step in value.strides)]
    order = sorted(range(value.ndim), key=lambda axis: (-value.strides[axis], -value.shape[axis]))
    value = value.transpose(order)
    return value.reshape(-1) if value.flags.c_contiguous else None


def overlapping(arrays: Sequence[Any]) -> bool:
    """True if a change of one of the arrays would show in another."""
    spans = sorted((_bounds(array) for array in arrays if array.size), key=lambda span: span[0])
    near: list[tuple[int, int, Any]] = []
    for low, high, array in spans:
        near = [span for span in near if span[1] > low]
        if any(_share(array, other) for _, _, other in near):
            return True
        near.append((low, high, array))
    return False


def _bounds(array: Any) -> tuple[int, int, Any]:
    begin = array.__array_interface__["data"][0]
    first, span = spread(array.shape, array.strides, array.itemsize)
    return begin - first, begin - first + span, array


def _share(one: Any, other: Any) -> bool:
    if not (one.flags.writeable or other.flags.writeable):
        return False
    try:
        return np.shares_memory(one, other, max_work=_WORK)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True
