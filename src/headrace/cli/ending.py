"""A command that is asked to end ends as if it were interrupted: what it holds is put in order first."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def orderly() -> Iterator[None]:
    """SIGTERM, which batch systems send before they kill, unwinds like Ctrl-C; exit code 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
