"""What an iteration of a loader leaves to the next one: its memory, its fetcher, its place in a cache."""

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that is given back when nobody wants it any more."""

    def close(self) -> None:
        """Idempotent."""


Thing = TypeVar("Thing", bound=Closable)


class Unused(Generic[Thing]):
    """One as a rule, none while it is used; a loader that is iterated several times at once has more. For any thread.

    What lies here in a forked process is the other one's: it is kept, and left alone.
    """

    def __init__(self) -> None:
        self._things: list[Thing] = []
        self._closed = False
        self._inherited: list[Thing] = []
        self._owner = os.getpid()
        self._lock = threading.RLock()  # an iteration may be collected, and put its own here, in any step

    def take(self, fits: Callable[[Thing], bool]) -> Thing | None:
        """One that fits, if there is any. Others are of no use any more."""
        if os.getpid() != self._owner:
            self._owner, self._lock = os.getpid(), threading.RLock()
            self._inherited, self._things = self._inherited + self._things, []
        with self._lock:
            self._closed = False
            while self._things:
                found = self._things.pop()
                if fits(found):
                    return found
                found.close()
        return None

    def put(self, thing: Thing) -> None:
        """It is not used at the moment. Further ones are closed."""
        with self._lock:
            if self._closed or self._things:
                thing.close()
            else:
                self._things.append(thing)

    def close(self) -> None:
        """Close what is here, and what is put here until something is taken again; idempotent."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            while self._things:
                self._things.pop().close()
