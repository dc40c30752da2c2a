"""One fork at a time, whatever thread asks for it.

Libraries that guard their locks and descriptors across forks may refuse a second one that begins meanwhile, as
filelock does, which comes with torch.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _ForkTurn:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def renew(self) -> None:
        self.lock = threading.Lock()


_turn = _ForkTurn()
os.register_at_fork(after_in_child=_turn.renew)  # there it is nobody's


@contextmanager
def alone() -> Iterator[None]:
    """No other thread forks for a loader in the block."""
    with _turn.lock:
        yield
