"""Time for which this thread could have run and had no core, as Linux counts it."""

import os

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Nanoseconds on a core, nanoseconds in the queue for one, and how often it got one."""


def queued_ns() -> int | None:
    """Nanoseconds of this thread's life so far; None where the system does not say."""
    try:
        descriptor = os.open(SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return None
    try:
        words = os.read(descriptor, 128).split()
    finally:
        os.close(descriptor)
    return int(words[1]) if len(words) > 1 else None
