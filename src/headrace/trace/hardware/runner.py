"""Runs a program with its trace on, sampled by the kernel."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import TraceError
from headrace.trace.hardware.perf import Sampler
from headrace.trace.hardware.profile import beside
from headrace.trace.session import VARIABLE

EMPTY_S = 0.05
"""How often the rings are emptied: each holds what a processor says in a second at the highest useful rate."""


@dataclass(frozen=True)
class Ran:
    """A program that ended."""

    code: int
    """As a shell would tell it."""
    seconds: float


def sampled(command: Sequence[str], trace: Path, events: Sequence[str] | None, frequency: int) -> Ran:
    """Run the command, samples beside its trace. Raises ``TraceError`` where sampling or starting is impossible."""
    with Sampler(beside(trace), events, frequency) as sampler:
        try:
            program, began = started(command, {VARIABLE: str(trace)}), time.monotonic()
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
    return Ran(exit_code(code), seconds)


def plain(command: Sequence[str], trace: Path | None, more: dict[str, str] | None = None) -> Ran:
    """Run the command without samples."""
    variables = {**({VARIABLE: str(trace)} if trace else {}), **(more or {})}
    program, began = started(command, variables), time.monotonic()
    with program, _undisturbed():
        code = program.wait()
    return Ran(exit_code(code), time.monotonic() - began)


def started(command: Sequence[str], variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    """The program, running. Raises ``TraceError`` when there is none."""
    try:
        return subprocess.Popen(list(command), env={**os.environ, **variables})  # noqa: S603  (what the user asked for)
    except OSError as error:
        msg = f"cannot run {command[0]!r} ({error.strerror}); give the program after --, as you would start it"
        raise TraceError(msg) from error


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
