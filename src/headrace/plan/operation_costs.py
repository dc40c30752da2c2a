"""Cost of each operation, from counts by size: one bin per doubling, so a quantile is known to within a factor."""

from collections.abc import Sequence
from itertools import accumulate

BINS = 64
"""A value of b bits counts in bin b; after the bins stands the sum of the values."""


def count(into: list[int], operation: int, value: int, times: int = 1) -> None:
    """Add a value to an account (a flat list, ``BINS + 1`` numbers per operation)."""
    at = operation * (BINS + 1)
    into[at + min(value.bit_length(), BINS - 1)] += times
    into[at + BINS] += value * times


def added(accounts: Sequence[Sequence[int]]) -> list[int]:
    """The sum of several accounts."""
    return [sum(numbers) for numbers in zip(*accounts, strict=True)]


def of(account: Sequence[int], operation: int) -> Sequence[int]:
    """Counts and sum of an operation."""
    return account[operation * (BINS + 1) : (operation + 1) * (BINS + 1)]


def mean(counts: Sequence[int]) -> float:
    """The mean of the values counted; 0 without any."""
    number = sum(counts[:BINS])
    return counts[BINS] / number if number else 0.0


def quantile(counts: Sequence[int], share: float) -> float:
    """A value that about ``share`` of those counted do not exceed, taking values as spread evenly within a bin."""
    number = sum(counts[:BINS])
    wanted = share * number
    for size, seen in enumerate(accumulate(counts[:BINS])):
        if counts[size] and seen >= wanted:
            low, high = (1 << size) >> 1, 1 << size
            return low + (high - low) * (wanted - seen + counts[size]) / counts[size]
    return 0.0
