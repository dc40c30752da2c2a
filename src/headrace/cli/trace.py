"""Work with traces."""

from __future__ import annotations

import argparse

from headrace.cli import trace_hw, trace_study


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="action")
    trace_hw.add(commands)
    trace_study.add(commands)


def run(options: argparse.Namespace) -> int:
    """Run the one that was named."""
    return int(options.handler(options))
