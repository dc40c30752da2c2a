"""A program run to its end, with orders for its loaders."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.options import TRACE_VARIABLE
from headrace.running.orders import ProcessReport, RunOrders, reports


class CannotRun(HeadraceError):
    """The error for a program that does not exist, or may not be run."""


@dataclass(frozen=True)
class Ran:
    """A program that ended."""

    code: int
    reports: tuple[ProcessReport, ...]

    @property
    def cpu(self) -> float:
        """CPU seconds per batch, of all processes together."""
        return sum(report.cpu for report in self.reports) / sum(report.batches for report in self.reports)

    def data(self) -> list[dict[str, Any]]:
        return [asdict(report) for report in self.reports]


def run(program: Sequence[str], orders: RunOrders, trace: str | None, *, quiet: bool) -> Ran:
    """Run the program to its end. Ctrl-C reaches it too, SIGTERM is passed on, and we wait for it.

    ``trace``: where its loaders record. ``quiet``: what it prints goes to the standard error output. Raises
    ``CannotRun``.
    """
    environment = orders.environment(os.environ)
    if trace is not None:
        environment[TRACE_VARIABLE] = str(Path(trace).absolute())
    output = sys.stderr if quiet else None
    try:
        started = subprocess.Popen(program, env=environment, stdout=output)  # noqa: S603  (as asked)
    except OSError as error:
        raise CannotRun(f"cannot run {program[0]}: {error.strerror}") from None
    with started as process, _told_to_end(process):
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:  # the terminal sent it to the program as well, which ends as it likes
                continue
    return Ran(128 - code if code < 0 else code, tuple(reports(Path(orders.reports))))


@contextmanager
def _told_to_end(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Batch systems and containers tell their first process alone to end; it is the program that has to know."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
