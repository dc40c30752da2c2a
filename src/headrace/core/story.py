"""The story of a loader's samples: a bounded log of what happened to each, who did it, and why."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

KEPT = 20_000
"""Events that are remembered: the newest ones."""
NAMED = 4
"""Samples that are named in a line."""
INCIDENTS = frozenset(
    {"queued ahead", "put aside", "taken back", "died", "queued again", "failed", "dropped", "begun again", "resumed"}
)
"""What happens to few samples: the other events are of every sample's way."""


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """An event in the story of a loader."""

    seconds: float
    """Since the loader was made."""
    who: str
    """``"loader"`` or ``"worker 3"``."""
    what: str
    """A word or two, always the same for the same thing: ``"took"``, ``"put aside"``, ``"queued again"``."""
    why: str
    indices: tuple[Any, ...]
    """Of the samples it happened to; none where it is about a worker or a batch of a stream."""

    def __str__(self) -> str:
        which = ", ".join(map(repr, self.indices[:NAMED])) + (", …" if len(self.indices) > NAMED else "")
        parts = [self.what, f"[{which}]" if which else "", f"({self.why})" if self.why else ""]
        return f"{self.seconds:12.6f} s  {self.who}: {' '.join(filter(None, parts))}"


class StoryLog:
    """Log of a loader's events. Written by the trainer, which reads what workers left of theirs."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start with no event. ``clock``: nanoseconds, the workers' own."""
        self.clock, self._began = clock, clock()
        self.told = 0
        """Events so far, those that are forgotten included."""
        self._events: deque[StoryEvent] = deque(maxlen=KEPT)

    def tell(self, who: str, what: str, why: str, indices: Iterable[Any] = (), when: int | None = None) -> None:
        """Log an event that happened now, or ``when`` the clock showed that."""
        seconds = ((self.clock() if when is None else when) - self._began) / 1e9
        self._events.append(StoryEvent(seconds, who, what, why, tuple(indices)))
        self.told += 1

    def since(self, told: int) -> list[StoryEvent]:
        """The events after the first ``told``, in the order they were told."""
        new = min(self.told - told, len(self._events))
        return list(self._events)[len(self._events) - new :]

    def about(self, index: Any) -> list[StoryEvent]:
        """The events of one sample, oldest first."""
        return [event for event in self.all() if any(_same(index, each) for each in event.indices)]

    def all(self) -> list[StoryEvent]:
        """All events that are remembered, oldest first: workers' events are told later than they happen."""
        return sorted(self._events, key=lambda event: event.seconds)

    def ending(self, lines: int = 30) -> str:
        """The last lines, to be added to a message; empty where nothing was told."""
        last = self.all()[-lines:]
        return "\nThe story so far ends with:\n" + "\n".join(map(str, last)) if last else ""


def _same(one: Any, two: Any) -> bool:
    try:
        return bool(one == two)
    except Exception:  # noqa: BLE001  (of arrays, say: an index may be anything)
        return one is two
