"""Something a process opens for itself and never shares with its children."""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_inherited: list[Any] = []
"""What came over a fork belongs to the parent: to close it here, even by forgetting it, could disturb the parent."""


class Owned(Generic[T]):
    """Opened on first use by each process that uses it. Pickled, it is closed."""

    def __init__(self, make: Callable[[], T], end: Callable[[T], None]) -> None:
        self._make = make
        self._end = end
        self._held: T | None = None
        self._owner = 0

    def get(self) -> T:
        """This process's own; opened now if there is none."""
        if self._held is not None and self._owner == os.getpid():
            return self._held
        self._disown()
        self._held = self._make()
        self._owner = os.getpid()
        return self._held

    def close(self) -> None:
        """Closes it if this process opened it. The next ``get`` opens again."""
        self._disown()
        held, self._held = self._held, None
        if held is not None:
            self._end(held)

    def _disown(self) -> None:
        if self._held is not None and self._owner != os.getpid():
            _inherited.append(self._held)
            self._held = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_owner": 0}
