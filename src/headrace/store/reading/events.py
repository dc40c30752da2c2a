"""Events on the way to a store, told to an observer as they happen, and counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.core.errors import StoreError


class Connected(NamedTuple):
    """A session was opened. Times are CLOCK_MONOTONIC nanoseconds."""

    began: int
    ended: int
    connections: int


class Attempted(NamedTuple):
    """Request, from its start to its answer. ``error`` is None where a row came."""

    key: str
    began: int
    ended: int
    size: int
    error: StoreError | None
    rows: int = 1
    """Rows that came."""


class Retried(NamedTuple):
    """A request failed for a passing reason and is made again after ``pause`` seconds."""

    key: str | None
    attempt: int
    pause: float
    error: StoreError


Event: TypeAlias = Connected | Attempted | Retried
Observer: TypeAlias = Callable[[Event], None]
"""Called in the event loop: it must not block."""


@dataclass
class Tally:
    """An observer that counts."""

    rows: int = 0
    bytes: int = 0
    failures: int = 0
    """Attempts that gave no row."""
    retries: int = 0
    sessions: int = 0
    connections: int = 0
    seconds: float = 0.0
    """In the network, summed over requests: those in flight together count each."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Attempted):
            self.seconds += (event.ended - event.began) / 1e9
            self.bytes += event.size
            self.rows += event.rows if event.error is None else 0
            self.failures += event.error is not None
        elif isinstance(event, Retried):
            self.retries += 1
        else:
            self.sessions += 1
            self.connections += event.connections
