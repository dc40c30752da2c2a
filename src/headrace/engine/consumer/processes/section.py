"""The consumer's critical section: nobody else is at the ledger meanwhile, and no interrupt leaves it shut."""

import threading
from contextlib import suppress
from types import TracebackType

from headrace.engine.memory.lock import Lock, Mutex


class Section:
    """Excludes the workers and this process's other threads. Where an interrupt kept it from ending, ``end`` does."""

    def __init__(self, lock: Lock | Mutex) -> None:
        """``lock``: the run's."""
        self._lock, self._threads = lock, threading.RLock()

    def __enter__(self) -> None:
        """Wait for both."""
        try:
            self._threads.acquire()
            self._lock.__enter__()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let both go."""
        try:
            self._lock.__exit__(kind, error, trace)
        finally:
            with suppress(RuntimeError):  # an interrupt came before it was taken
                self._threads.release()

    def end(self) -> None:
        """Nothing is locked by this thread any more."""
        self._lock.leave()
        with suppress(RuntimeError):
            while True:
                self._threads.release()
