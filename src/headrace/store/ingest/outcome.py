"""What came of an ingest, part by part and in all. Values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Failure(NamedTuple):
    """An item that was not stored, and why."""

    item: str
    error: str


@dataclass
class Tally:
    """Numbers of items, and the failures among them; parts add up."""

    written: int = 0
    present: int = 0
    """Already stored, or there twice in the source."""
    payload_bytes: int = 0
    """Of what was written."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def items(self) -> int:
        return self.written + self.present + len(self.failures)

    def add(self, other: "Tally") -> None:
        self.written += other.written
        self.present += other.present
        self.payload_bytes += other.payload_bytes
        self.failures += other.failures


@dataclass(frozen=True)
class Outcome:
    """An ingest that came to its end. ``failures`` are in no order."""

    source: str
    store: str
    written: int
    present: int
    payload_bytes: int
    failures: tuple[Failure, ...]
    seconds: float

    def data(self) -> dict[str, Any]:
        """JSON."""
        return {
            "source": self.source,
            "store": self.store,
            "samples": self.written + self.present,
            "written": self.written,
            "present": self.present,
            "payload_bytes": self.payload_bytes,
            "failed": [failure._asdict() for failure in self.failures],
            "seconds": round(self.seconds, 3),
        }


Progress = Callable[[Tally, int | None], None]
"""Told of the tally so far and the number of items, where that is known."""
