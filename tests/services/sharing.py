"""A server that several use: started by the first, stopped by the last, whoever that is.

Users hold a shared lock on ``run/NAME.users``, which the kernel takes from those that die. Tests of one run share
servers with each other, and with those of a second run in the same checkout.
"""

import fcntl
import shutil
from collections.abc import Callable
from typing import IO

from tests.services import HOME, cassandra, locked, redis, toxiproxy
from tests.services.process import Running, listens


def _cassandra() -> Running:
    node = cassandra.single()
    running = node.start()
    node.wait_ready(running)
    return running


SERVICES: dict[str, Callable[[], Running]] = {
    "cassandra": _cassandra,
    "redis": redis.start,
    "toxiproxy": toxiproxy.start,
}


class Used:
    """A server that runs for as long as somebody has one of these and has not released it."""

    def __init__(self, name: str) -> None:
        self.name = name
        with locked(name):
            self.running, self.is_new = _ensured(name)
            self._lock: IO[str] = (HOME / "run" / f"{name}.users").open("a+")
            fcntl.lockf(self._lock, fcntl.LOCK_SH)

    def keep(self) -> None:
        """It stays until it is stopped by its name, when nobody uses it too."""
        (HOME / "run" / f"{self.name}.kept").touch()

    def release(self) -> None:
        with locked(self.name), self._lock:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # others use it
                return
            if not (HOME / "run" / f"{self.name}.kept").exists():
                _stop(self.name)


def stop(name: str) -> bool:
    """Ends it, whoever uses it, and says whether it ran. Its data goes with it."""
    with locked(name):
        (HOME / "run" / f"{name}.kept").unlink(missing_ok=True)
        return _stop(name)


def _ensured(name: str) -> tuple[Running, bool]:
    """The service, and whether it was started now. One that runs already and listens is taken."""
    known = Running.known(name)
    if known is not None and all(listens("127.0.0.1", port) for port in known.ports.values()):
        return known, False
    if known is not None:
        known.stop()
    return SERVICES[name](), True


def _stop(name: str) -> bool:
    known = Running.known(name)
    if known is not None:
        known.kill()  # asked to end, it would first write what is removed here
    (HOME / "run" / f"{name}.json").unlink(missing_ok=True)
    shutil.rmtree(HOME / "data" / name, ignore_errors=True)
    return known is not None
