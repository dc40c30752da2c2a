"""Real servers for tests and benchmarks: got where they are missing, started on loopback, stopped by their own pid.

``make services`` starts them and leaves them running; tests start those they need and stop what they started.
Everything lies under ``.services``: ``bin``, ``jars``, ``tls``, ``data`` and ``run``, one file per running server.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / ".services"


class Unavailable(Exception):
    """A service cannot be had on this machine. The message is one line that says why."""


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time fetches or starts what has this name."""
    path = HOME / "run" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
