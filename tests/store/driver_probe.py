"""Programs that use a Cassandra store in some way, as users' programs do: each is run by a process of its own."""

import signal
import sys
from collections.abc import Callable

from headrace import fetch, store
from headrace.core.errors import StoreError
from headrace.core.options import Retry
from headrace.store import Fetching, Record

QUICK = Retry(attempts=3, first=0.01, ceiling=0.1, patience=3.0)


def keys(url: str) -> object:
    return len(store.open_store(url).keys())


def by_id(url: str) -> object:
    return len(list(fetch(url, ["k0", "k1"], fetching=Fetching(retry=QUICK))))


def written(url: str) -> object:
    with store.open_writable(url).writer() as writer:
        writer.put([Record("k0", b"payload", 0, {})])
        return len(writer.present(["k0"]))


def interrupted(url: str) -> object:
    """Ctrl-C, as soon as there is something to wait for."""
    opened = store.open_store(url)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        return len(opened.keys())
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


PROGRAMS: dict[str, Callable[[str], object]] = {
    program.__name__: program for program in (keys, by_id, written, interrupted)
}

if __name__ == "__main__":
    try:
        told = f"done {PROGRAMS[sys.argv[1]](sys.argv[2])}"
    except StoreError as error:
        told = f"error {type(error).__name__}: {error}"
    sys.stdout.write(told + "\n")
    sys.stdout.write(f"driver {'acsylla' in sys.modules}\n")
