"""Limits on this process, and errors that say which one was met and what to do about it."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import LimitReached


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns the system's refusal inside the block into an error that names the limit; ``what`` was to be done."""
    try:
        yield
    except OSError as error:
        reason = _reason(error.errno)
        if reason is None or isinstance(error, LimitReached):
            raise
        raise LimitReached(error.errno, f"cannot {what}: {reason}") from error


def _reason(number: int | None) -> str | None:
    if number == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"{_open_files()} files are open and this process may have {soft} (it may raise that to {hard}); "
            "raise the limit (ulimit -n), use fewer workers, or close() other loaders"
        )
    if number == errno.ENFILE:
        return "the machine has no more open files to give; raise fs.file-max, or use fewer workers"
    if number == errno.EAGAIN:
        return (
            f"no more processes are allowed (ulimit -u {resource.getrlimit(resource.RLIMIT_NPROC)[0]}, or pids.max of "
            "the cgroup); raise the limit, or use fewer workers"
        )
    if number == errno.ENOMEM:
        return "there is not enough memory for it; use fewer workers, or raise the limit (ulimit -v, the cgroup's)"
    return None


def _open_files() -> int:
    # Listing them would take another descriptor.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 0
    for fd in range(min(soft, 1 << 16)):
        try:
            os.fstat(fd)
        except OSError:
            continue
        count += 1
    return count


def address_space() -> int | None:
    """Bytes of address space this process may still map; None when nothing limits it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, soft - pages * resource.getpagesize())
