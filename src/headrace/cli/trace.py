"""Look into a trace, and take one of a program."""

from __future__ import annotations

import argparse

from headrace.cli import (
    UsageError,
    trace_compare,
    trace_export,
    trace_hw,
    trace_merge,
    trace_report,
    trace_study,
)
from headrace.core.errors import TraceError

COMMANDS = {
    "report": trace_report,
    "export": trace_export,
    "merge": trace_merge,
    "compare": trace_compare,
    "hw": trace_hw,
    "study": trace_study,
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the commands, each with ``--json`` behind its own name too."""
    commands = parser.add_subparsers(dest="trace_command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
        module.configure(command)


def run(options: argparse.Namespace) -> int:
    """Run one of them; a file that is no trace is the user's to mend."""
    try:
        return int(COMMANDS[options.trace_command].run(options))
    except TraceError as error:
        raise UsageError(str(error)) from error
