"""Inputs that something went wrong with, from a seed: what readers of files and states are given."""

import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ROOM = 512 << 20
"""Bytes that reading malformed inputs may add to this process."""

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**70,
    1e400,
    "",
    "x",
    "0",
    [],
    {},
    [[]],
    {"a": [1]},
    "\0",
    "\udcff",
]
"""Values of other types and sizes than were expected."""


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The bytes with one to four accidents: flipped, lost, doubled, cut off, overwritten, moved."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        size = min(rng.choice([1, 1, 2, 4, 8, 64, 512]), len(data) - at)
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size] * rng.choice([1, 2, 50])
            case 3:
                del data[at:]
            case 4:
                data[at : at + size] = rng.choice([b"\0", b"\xff", b"\x7f"]) * size
            case 5:
                data[at : at + size] = rng.randbytes(size)
            case _:
                there = rng.randrange(len(data) + 1)
                data[there:there] = data[at : at + size]
    return bytes(data)


def edited(rng: random.Random, value: Any, but: str | None = None) -> Any:
    """Plain data with one thing in it replaced, removed, added or nested; nothing in ``but``. Changes ``value``."""
    places = list(_places(value, but))
    holder, key = rng.choice(places) if places else (None, None)
    if holder is None:
        return rng.choice(ODD)
    change = rng.randrange(5)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[rng.choice(["", "epoch", "version", "again", "exchanged", "sampler", "numpy", "x"])] = rng.choice(ODD)
    elif change == 2 and type(holder[key]) is int:
        holder[key] += rng.choice([-(2**70), -1000, -1, 1, 1000, 2**40, 2**63])
    elif change == 3:
        for _ in range(rng.choice([1, 3, 400, 5000])):
            holder[key] = [holder[key]]
    else:
        holder[key] = rng.choice(ODD)
    return value


def _places(value: Any, but: str | None) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key != but:
            yield value, key
            yield from _places(inner, but)


@contextmanager
def bounded() -> Iterator[None]:
    """What is done in the block does not take much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < ROOM


def check_line(error: BaseException) -> None:
    """It says in one line what is wrong."""
    assert str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 1000
