"""Keys of samples that have no names: their numbers, with leading zeros."""

from bisect import bisect_right
from collections.abc import Sequence

DIGITS = 9


def numbered(count: int, first: int = 0) -> list[str]:
    """The keys of so many samples."""
    return [f"{number:0{DIGITS}}" for number in range(first, first + count)]


def position_of(key: str, count: int) -> int | None:
    """The number that a key is; None where it is none, or there are not so many."""
    # "7" would be a second key of a sample.
    number = int(key) if key.isascii() and key.isdecimal() and len(key) == DIGITS else -1
    return number if 0 <= number < count else None


def place_of(key: str, starts: Sequence[int]) -> tuple[int, int] | None:
    """The shard and position of a key, where shard n begins with number ``starts[n]``; None for an unknown key."""
    number = position_of(key, starts[-1])
    if number is None:
        return None
    shard = bisect_right(starts, number) - 1
    return shard, number - starts[shard]
