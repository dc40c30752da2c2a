"""Look into a store, remove rows from it, write it out."""

from __future__ import annotations

import argparse

from headrace.cli import UsageError, store_export, store_info, store_prune, store_rm
from headrace.core.errors import HeadraceError

COMMANDS = {"info": store_info, "rm": store_rm, "prune": store_prune, "export": store_export}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the commands, each with ``--json`` behind its own name too."""
    commands = parser.add_subparsers(dest="store_command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
        module.configure(command)


def run(options: argparse.Namespace) -> int:
    """Run one of them; a store that does not answer is the user's to mend."""
    try:
        return int(COMMANDS[options.store_command].run(options))
    except HeadraceError as error:
        raise UsageError(str(error)) from error
