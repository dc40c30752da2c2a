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
from headrace.trace.file import ANNOUNCED
from headrace.trace.hardware.perf import PerfSampler
from headrace.trace.hardware.profile import beside
from headrace.trace.session import VARIABLE

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
    with PerfSampler(beside(trace), events, frequency) as sampler, _announced() as announced:
        variables = {VARIABLE: str(trace), ANNOUNCED: announced.name}
        try:
            program, began = started(command, variables, output, sampler.as_before), time.monotonic()
        except TraceError:
            beside(trace).unlink()
            raise
        with program, _undisturbed():
            handle = os.pidfd_open(program.pid)
            try:
                while not select.select([handle], [], [], EMPTY_S)[0]:
                    sampler.drain()
            finally:
                os.close(handle)
            code = program.wait()
        seconds = time.monotonic() - began
        sampler.finish()
        return ProgramRun(exit_code(code), seconds, _made(announced, trace))


def plain(
    command: Sequence[str], trace: Path, variables: dict[str, str] | None = None, output: int | None = None
) -> ProgramRun:
    """Run the command without samples."""
    with _announced() as announced:
        all_variables = {VARIABLE: str(trace), ANNOUNCED: announced.name, **(variables or {})}
        program, began = started(command, all_variables, output), time.monotonic()
        with program, _undisturbed():
            code = program.wait()
        return ProgramRun(exit_code(code), time.monotonic() - began, _made(announced, trace))


def _announced() -> "tempfile._TemporaryFileWrapper[str]":
    return tempfile.NamedTemporaryFile("r", prefix="headrace-traces-")


def _made(announced: "tempfile._TemporaryFileWrapper[str]", trace: Path) -> tuple[Path, ...]:
    paths = dict.fromkeys(map(Path, (str(trace), *announced.read().splitlines())))
    return tuple(path for path in paths if path.exists())


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


def exit_code(code: int) -> int:
    """A signal's number as shells tell it."""
    return 128 - code if code < 0 else code


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C is for the program; what it wrote by then is still to be read."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
