"""Pipelines that somebody looks at while they run, from outside: by when the next operation is asked for.

The operations and their lists stay what they are; who applies a pipeline asks here for an iterator over it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

Undo = Callable[[], None]


class Watcher(Protocol):
    """Looks at one list of operations."""

    def between(self, operations: Iterator[Any], first: int) -> Iterator[Any]:
        """The same ones, the first of which is number ``first`` of the list; each ends when the next is asked for."""


class WatchedLists:
    """The watched lists of one kind, told apart by identity."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, list[Watcher]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, which: Any, watcher: Watcher) -> Undo:
        """Look at this one; what is returned ends that."""
        self._held.setdefault(id(which), (which, []))[1].append(watcher)

        def undo() -> None:
            _, watchers = self._held.get(id(which), (which, []))
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._held.pop(id(which), None)

        return undo

    def watchers(self, which: Any) -> Sequence[Watcher]:
        """The watchers of this list."""
        found = self._held.get(id(which))
        return () if found is None else found[1]


PIPELINES = WatchedLists()
"""Transforms of datasets whose operations are applied one by one, lists within lists opened: see ``prefix.apply``."""


class Watched:
    """An iterator over operations that their watchers look at. To be closed: the last operation ends there."""

    def __init__(self, operations: Iterator[Any], watchers: Sequence[Watcher], first: int = 0) -> None:
        self._each: list[Any] = []
        for watcher in watchers:
            operations = watcher.between(operations, first)
            self._each.append(operations)
        self._last = operations

    def __iter__(self) -> Iterator[Any]:
        return self._last

    def close(self) -> None:
        """Close the watchers, which ends the last operation, also one that raised."""
        for each in reversed(self._each):
            each.close()
