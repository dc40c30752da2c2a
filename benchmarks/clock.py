"""The time there is: when an experiment must have ended, and when each of its cases should."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

FOREVER = float("inf")


class OutOfTime(Exception):
    """What was to be measured cannot be, in the time there is."""


_end = _case = FOREVER
shortened: list[str] = []
"""What was left out for want of time since `end_by`, in words: a report says it."""


def end_by(moment: float) -> None:
    """Nothing is measured after that moment, as `time.monotonic` counts: what is under way then is given up."""
    global _end, _case
    _end, _case = moment, FOREVER
    shortened.clear()


def end() -> float:
    """That moment."""
    return _end


def check_time() -> None:
    """Raise OutOfTime from that moment on: for an experiment whose runs are not isolated, before each of them."""
    if time.monotonic() >= _end:
        raise OutOfTime


def shared(cases: Iterable[T]) -> Iterator[T]:
    """Cases, each with a share of the time that is left when it begins: its `rounds` keep to it. A mapping says how
    the shares compare; else they are equal.
    """
    global _case  # noqa: PLW0603  (as above)
    weights = cases if isinstance(cases, Mapping) else dict.fromkeys(cases, 1.0)
    left = sum(weights.values())
    try:
        for case, weight in weights.items():
            now = time.monotonic()
            _case = now + (_end - now) * weight / left
            left -= weight
            yield case
    finally:
        _case = FOREVER


def rounds(count: int, say: Callable[[str], None] = lambda _: None) -> Iterator[int]:
    """Numbers of repeats: the first whatever the time is, another only where one as long as those before would end."""
    longest = 0.0
    for number in range(count):
        began = time.monotonic()
        if number and began + longest > min(_case, _end):
            say(f"no time for repeat {number + 1} of {count}")
            shortened.append(f"{number} repeats of {count}")
            return
        yield number
        longest = max(longest, time.monotonic() - began)


@contextmanager
def unless_first(number: int) -> Iterator[None]:
    """Around a repeat: one that has to be given up ends quietly, for those before it are a result."""
    try:
        yield
    except OutOfTime:
        if not number:
            raise
        shortened.append(f"{number} whole repeats")
