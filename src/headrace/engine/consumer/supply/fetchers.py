"""A loader's fetchers between its iterations."""

import os
import threading

from headrace.core.errors import StoreError
from headrace.core.stats import Network
from headrace.engine.consumer.supply.fetching import Fetcher
from headrace.engine.fetcher.process import Orders


class Fetchers:
    """One as a rule, more while the loader is iterated several times at once.

    To connect takes a dozen round trips and to open the window some more: a fetcher begins when the loader is made, and
    outlives epochs and their workers. One that somebody uses is not here.
    """

    def __init__(self) -> None:
        self._free: list[Fetcher] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._inherited: list[Fetcher] = []  # another process's: kept, and left alone
        self._closed = False

    def begin(self, orders: Orders) -> None:
        """Have one connect, for whoever will ask for it."""
        fetcher = Fetcher(orders)
        self._free.append(fetcher)
        fetcher.begin()

    def take(self, orders: Orders, before: Network) -> Fetcher:
        """One that reads the same in the same way, connected if possible; else a new one. ``before``: for that one.

        What lies here in a forked process is the other one's.
        """
        self._closed = False
        with self._lock:
            free, self._free = self._free, []
        if self._owner != os.getpid():
            self._inherited += free
            self._owner, free = os.getpid(), []
        while free:
            found = free.pop()
            if found.serves(orders) and _works(found):
                self._free += free
                return found
            found.close()
        return Fetcher(orders, before)

    def put(self, fetcher: Fetcher) -> None:
        """It is not used at the moment, and nothing of what it brought is. Further ones are ended."""
        if self._closed or self._free or not fetcher.rest():
            fetcher.close()
        else:
            self._free.append(fetcher)

    def close(self) -> None:
        """End them; idempotent. A process forked from the one that began them ends nothing."""
        self._closed = True
        if self._owner != os.getpid():
            return
        while self._free:
            self._free.pop().close()


def _works(fetcher: Fetcher) -> bool:
    """False where it could not connect: whoever asks now may have better luck, or should hear of it anew."""
    try:
        fetcher.pump()
    except StoreError:
        return False
    return True
