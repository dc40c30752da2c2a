"""The groups of indices that an epoch makes: what a resumed one still owes, then what its order gives."""

from collections import deque
from typing import Any, Protocol

from headrace.sched.source import Group


class Drawing(Protocol):
    """An order of indices, or of batches of them."""

    def draw(self) -> Any:
        """The next item. Raises ``StopIteration`` at the end; where it raises, nothing was drawn."""

    def state(self) -> dict[str, Any]:
        """The state of the order, as far as it was drawn."""


class Groups:
    """Batches of indices to make: first what a resumed epoch had drawn and not delivered, then what the order gives."""

    def __init__(self, order: Drawing, pending: list[list[Any]], batch_size: int | None, *, batched: bool) -> None:
        """``batch_size``: pending samples are regrouped to it, since out of order they are parts of several batches."""
        self._order, self._size, self._batched = order, batch_size, batched
        self._kept: deque[list[Any]] = deque()
        self._flat: list[Any] = []
        self.put_back(pending)

    def next(self) -> Group | None:
        """The next group; None at the end of the epoch."""
        if self._kept:
            return Group(self._kept.popleft())
        if not self._flat:
            drawn = self._draw()
            return None if drawn is None else Group(drawn)
        while self._size is not None and len(self._flat) < self._size:
            drawn = self._draw()
            if drawn is None:
                break
            self._flat += drawn
        group, self._flat = Group(self._flat[: self._size]), self._flat[self._size :]
        return group

    def _draw(self) -> list[Any] | None:
        try:
            item = self._order.draw()
        except StopIteration:
            return None
        return list(item) if self._batched else [item]

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``."""
        if self._size is None:
            self._kept.extendleft(list(group) for group in reversed(groups) if group)
        else:
            self._flat = [index for group in groups for index in group] + self._flat

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        """See ``Source``."""
        waiting = [list(group) for group in self._kept] + ([list(self._flat)] if self._flat else [])
        return {"pending": owed + waiting, "order": self._order.state()}

    def wakes(self) -> tuple[int, int]:
        """No descriptor: nothing announces itself."""
        return -1, 0

    def close(self) -> None:
        """Do nothing: nothing is held."""
