"""Look into a trace, and take one of a program."""

import argparse

from headrace.cli import add_commands
from headrace.cli.traces import trace_compare, trace_export, trace_hw, trace_merge, trace_report, trace_study

COMMANDS = {
    "report": trace_report,
    "export": trace_export,
    "merge": trace_merge,
    "compare": trace_compare,
    "hw": trace_hw,
    "study": trace_study,
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, COMMANDS)
