"""Memory pools of all renderers of a process, which torch can only give back while no thread allocates from one.

It ends the process otherwise: a loader that is closed would do that to another one that decodes.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_turn = threading.Condition()
_users = 0
_retired: list[Any] = []


@contextmanager
def used(pool: Any, device: Any, cuda: Any) -> Iterator[None]:
    """A block in which this thread allocates from ``pool``. Waits where others are to be given back."""
    global _users  # noqa: PLW0603  (of the process, as torch's own book is)
    with _turn:
        while _retired:
            _turn.wait()
        _users += 1
    try:
        with cuda.use_mem_pool(pool, device):
            yield
    finally:
        with _turn:
            _users -= 1
            _give_back()


def retire(pool: Any) -> None:
    """Give it back, or have whoever uses one last do so; the caller has let go of what it had of it."""
    with _turn:
        _retired.append(pool)
        _give_back()


def _give_back() -> None:
    if not _users:
        _retired.clear()
        _turn.notify_all()
