"""Files that are open for a moment, in a process that may be interrupted at any line."""

import os
import select
from functools import partial


def open_file(path: str | os.PathLike[str], flags: int, *, at: int | None = None) -> select.epoll:
    """A file, open until the ``with`` block around it ends, or until nothing refers to what is returned any more.

    The latter is for interrupts, of which one may come before the block, or as it ends. Of the objects that own a
    descriptor, an ``epoll`` is the one that closes it without running any Python and without a warning. Nothing is
    polled with it. Opened below the directory ``at`` if there is one. Raises ``OSError``.
    """
    numbers = map(partial(os.open, dir_fd=at), (path,), (flags | os.O_CLOEXEC,), (0o600,))
    # One call from the opening to the owner: between two, a signal's handler could run, and raise.
    return next(map(select.epoll.fromfd, numbers))
