"""Choice of the trace a loader writes to: its own, the one around it, or the one the environment names."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.core.errors import TraceError
from headrace.core.options import TRACE_VARIABLE
from headrace.trace.probe import Probe
from headrace.trace.trace_file import Recording, record

COUNTED = "HEADRACE_CALLGRIND"
"""How often each operation is counted in each process; only 'headrace trace hw --callgrind' sets it."""
_around: list[Recording] = []


class TraceSession:
    """A trace under way, for what loaders do not know of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def path(self) -> str:
        return self._recording.path

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """The block is in the trace under that name: a training step, say."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self._recording.stream().span(name, start, time.monotonic_ns() - start)


@contextmanager
def tracing(path: str | os.PathLike[str]) -> Iterator[TraceSession]:
    """Loaders that begin an epoch within the block are recorded in the file at ``path``, in this and other threads."""
    recording = record(checked(path, "path"))
    _around.append(recording)
    try:
        yield TraceSession(recording)
    finally:
        _around.remove(recording)


def recording(path: str | None) -> Recording | None:
    """The recording of a loader with ``trace=path``: that path's, or the one the loader finds itself in."""
    if path is not None:
        return record(path)
    if _around:
        return _around[-1]
    named = os.environ.get(TRACE_VARIABLE)
    return record(checked(named, TRACE_VARIABLE)) if named else None


def count_instructions(probe: Probe, names: Sequence[str]) -> None:
    """Have a probe's operations counted, if this process was started for that; ``names`` by number, from 1 on."""
    if COUNTED in os.environ:
        from headrace.trace.hardware import callgrind  # noqa: PLC0415  (nobody else is to pay for it)

        callgrind.attach(probe, names, os.environ[COUNTED])


def checked(path: Any, name: str) -> str:
    """The path in argument ``name``, made absolute so that a change of directory does not change the file."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name}= takes a path, not {path!r}")
    found = Path(path).absolute()
    if not found.parent.is_dir():
        raise TraceError(f"{name}={str(path)!r}: the directory {str(found.parent)!r} does not exist")
    if found.is_dir():
        raise TraceError(f"{name}={str(path)!r} is a directory; name a file")
    return str(found)
