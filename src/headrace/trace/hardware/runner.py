"""Runs a program with its trace on, sampled by the kernel."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import TraceError
from headrace.core.options import TRACE_VARIABLE
from headrace.trace.hardware.perf import PerfSampler
from headrace.trace.hardware.profile import beside
from headrace.trace.trace_file import ANNOUNCED

EMPTY_S = 0.05
"""How often the rings are emptied: each holds what a processor says in a second at the highest useful rate."""


@dataclass(frozen=True)
class ProgramRun:
    """A program that ended."""

    code: int
    """As a shell would tell it."""
    seconds: float
    traces: tuple[Path, ...]
    """Those it made that are there: the one it was told to make, and those that it named itself."""


def sampled(
    command: Sequence[str], trace: Path, events: Sequence[str] | None, frequency: int, output: int | None = None
) -> ProgramRun:
    """Run the command, samples beside its trace. Raises ``TraceError`` where sampling or starting is impossible.

    ``output``: a descriptor for what the program prints; None for the usual one.
    """
    with PerfSampler(beside(trace), events, frequency) as sampler:
        try:
            return plain(command, trace, None, output, sampler)
        except TraceError:
            beside(trace).unlink()
            raise


def plain(
    command: Sequence[str],
    trace: Path,
    variables: dict[str, str] | None = None,
    output: int | None = None,
    sampler: PerfSampler | None = None,
) -> ProgramRun:
    """Run the command, without samples if there is no ``sampler``. Raises ``TraceError`` where it cannot be started."""
    with tempfile.NamedTemporaryFile("r", prefix="headrace-traces-") as announced:
        told = {TRACE_VARIABLE: str(trace), ANNOUNCED: announced.name, **(variables or {})}
        began = time.monotonic()
        with started(command, told, output, sampler.as_before if sampler else None) as program, _undisturbed():
            if sampler is not None:
                _drain(program, sampler)
            code = program.wait()
        seconds = time.monotonic() - began
        if sampler is not None:
            sampler.finish()
        paths = dict.fromkeys(map(Path, (str(trace), *announced.read().splitlines())))
        # As a shell tells it: of a signal, 128 and its number.
        return ProgramRun(128 - code if code < 0 else code, seconds, tuple(path for path in paths if path.exists()))


def _drain(program: "subprocess.Popen[bytes]", sampler: PerfSampler) -> None:
    """Empties the rings until the program ends."""
    handle = os.pidfd_open(program.pid)
    try:
        while not select.select([handle], [], [], EMPTY_S)[0]:
            sampler.drain()
    finally:
        os.close(handle)


def started(
    command: Sequence[str], variables: dict[str, str], output: int | None, prepare: Callable[[], None] | None = None
) -> "subprocess.Popen[bytes]":
    """The program, running. Raises ``TraceError`` when there is none. ``prepare`` is called in its process first."""
    environment = {**os.environ, **variables}
    try:
        return subprocess.Popen(  # noqa: S603  (what the user asked for)
            list(command),
            env=environment,
            stdout=output,
            preexec_fn=prepare,  # noqa: PLW1509  (the command line has one thread)
        )
    except OSError as error:
        raise TraceError(
            f"cannot run {command[0]!r} ({error.strerror}); give the program after --, as you would start it"
        ) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C is for the program; what it wrote by then is still to be read."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
