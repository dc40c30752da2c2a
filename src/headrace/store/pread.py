"""A piece of a file, read in one go: no position is shared, so any thread of any process may read."""

import os
from pathlib import Path


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Raises ``OSError`` also where the file ends too early, before any memory is taken.

    Opening anew costs ten microseconds and holds nothing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if offset + size > os.fstat(descriptor).st_size:
            raise OSError(f"the file ends within what should be at {offset}")
        found = os.pread(descriptor, size, offset)
        while len(found) < size:
            more = os.pread(descriptor, size - len(found), offset + len(found))
            if not more:
                raise OSError(f"the file ends within what should be at {offset}")
            found += more
        return found
    finally:
        os.close(descriptor)
