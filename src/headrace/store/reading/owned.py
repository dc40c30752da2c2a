"""A resource that a process opens for itself and never shares with its children."""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_inherited: list[Any] = []
"""What came over a fork belongs to the parent: to close it here, even by forgetting it, could disturb the parent."""

_renewing = threading.Lock()


def _after_fork() -> None:
    global _renewing  # noqa: PLW0603  (a thread of the parent may have held it, and there is none here to let go of it)
    _renewing = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Owned(Generic[T]):
    """A resource that is opened on first use by each process that uses it. Pickled, it is closed. Threads of a
    process share one.
    """

    def __init__(self, make: Callable[[], T], end: Callable[[T], None]) -> None:
        self._make = make
        self._end = end
        self._held: tuple[int, T] | None = None
        self._opening = 0, threading.RLock()

    def get(self) -> T:
        """This process's own; opened now if there is none."""
        held = self._held
        if held is not None and held[0] == os.getpid():  # without the lock: whatever was put there is whole
            return held[1]
        with self._lock():
            self._disown()
            if self._held is None:
                self._held = os.getpid(), self._make()
            return self._held[1]

    def close(self) -> None:
        """Closes it if this process opened it. The next ``get`` opens again."""
        with self._lock():
            self._disown()
            held, self._held = self._held, None
        if held is not None:
            self._end(held[1])

    def _lock(self) -> threading.RLock:
        """This process's lock: one that came over a fork may be held by a thread that did not."""
        if self._opening[0] != os.getpid():
            with _renewing:
                if self._opening[0] != os.getpid():
                    self._opening = os.getpid(), threading.RLock()
        return self._opening[1]

    def _disown(self) -> None:
        if self._held is not None and self._held[0] != os.getpid():
            _inherited.append(self._held)
            self._held = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=(0, threading.RLock()))
