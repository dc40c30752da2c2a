"""Say where the time goes: the bottleneck, every operation, waits and delays, what to change."""

import argparse
import os
import socket
import sys
from pathlib import Path

from headrace.cli import UsageError, answer
from headrace.cli.screen import screen
from headrace.cli.traces.trace_tables import show
from headrace.trace.analysis.select import chosen
from headrace.trace.calibrate import calibrate
from headrace.trace.html import page
from headrace.trace.reader import Trace, read
from headrace.trace.report import report

LONGEST_S = 1e9
"""Of a trace: its times are nanoseconds, and have 64 bits."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    parser.add_argument("--run", type=int, metavar="N", help="only this run (one epoch; numbers are in the report)")
    parser.add_argument("--loader", metavar="NAME", help="only this loader")
    parser.add_argument("--html", metavar="OUT", help="write a page with plots and a timeline there instead")
    parser.add_argument(
        "--from", dest="begin", type=float, default=0.0, metavar="S", help="begin its timeline S seconds in"
    )


def run(options: argparse.Namespace) -> int:
    if not abs(options.begin) < LONGEST_S:
        raise UsageError(f"--from {options.begin}: give a number of seconds")
    trace = chosen(read(options.file), options.run, options.loader)
    found = report(trace, calibrate(), _cores(trace))
    if options.html:
        try:
            Path(options.html).write_text(page(trace, found, options.begin), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {options.html}: cannot be written ({error.strerror})") from error
        print(f"{options.html}: open it in a browser", file=sys.stderr)
    if options.json or not options.html:
        answer(options, found.data(), lambda: show(found, screen()))
    return 0


def _cores(trace: Trace) -> int | None:
    """The number of cores the loader had, if it ran here."""
    return len(os.sched_getaffinity(0)) if trace.host == socket.gethostname() else None
