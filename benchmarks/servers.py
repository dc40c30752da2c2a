"""``python -m benchmarks.servers start|stop``: the servers of the network's benchmarks, kept running between them.

Without it each of them starts a server, warms it and ends it. What lies under ``.services`` is used as it is (``jars``
and ``tls``, with a ``java`` of version 17 or later in PATH), so that a folder that was made elsewhere will do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.measure import Figures, isolated
from tests.services import HOME, Unavailable, cassandra
from tests.services.process import Running, listens
from tests.services.sharing import stop

NAME = "cassandra-benchmark"
WARMED = HOME / "data" / NAME / "warmed"
"""Is there when the server has rows and was read from; goes with its data."""


@contextmanager
def node(say: Callable[[str], None]) -> Iterator[int]:
    """The port of a node for benchmarks: the one that is kept running, or one that ends with its data afterwards."""
    kept = running()
    if kept is not None:
        yield kept
        return
    try:
        yield started(say)
    finally:
        stop(NAME)


def running() -> int | None:
    """The port of the node, while there is one."""
    known = Running.known(NAME)
    return known.ports["cql"] if known is not None and listens("127.0.0.1", known.ports["cql"]) else None


def started(say: Callable[[str], None]) -> int:
    """The port of a new node, of which one can read."""
    one = cassandra.single(name=NAME, benchmark=True)
    say("starting Cassandra")
    failed = isolated(partial(_start, one), limit=240)["failed"]
    if failed:
        raise SystemExit(f"no Cassandra here: {failed}")
    return one.port


def _start(one: cassandra.Node) -> Figures:
    """In a process of its own, as all that uses the driver: it has threads, and what follows is forked."""
    try:
        one.wait_ready(one.start())
    except Unavailable as reason:
        return {"failed": str(reason)}
    return {"failed": ""}


def main(arguments: list[str]) -> int:
    """Start it, or end it."""
    if arguments not in (["start"], ["stop"]):
        print(__doc__)
        return 2
    if arguments == ["stop"]:
        print(f"{NAME}: {'stopped' if stop(NAME) else 'was not running'}")
    elif (port := running() or started(print)) is not None:
        print(f"{NAME}: 127.0.0.1:{port}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
