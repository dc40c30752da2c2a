"""The ``headrace`` command: one module per subcommand, each with `configure` and `run`.

``configure(parser)`` adds the command's arguments; ``run(options)`` does it and returns the exit code, see ``main``.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class UsageError(Exception):
    """The user can mend it: printed as one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser of one command; with ``mixed``, options may stand between its arguments, in every Python."""

    mixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options and what is left, as argparse has it."""
        if not self.mixed or {"-h", "--help"} & set(args or ()):
            return super().parse_known_args(args, namespace)
        self.mixed = False  # argparse comes back here for each half of the work
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixed = True


def add_commands(parser: argparse.ArgumentParser, modules: Mapping[str, ModuleType]) -> None:
    """Commands below another one. What the chosen one does is ``options.act``; one that has others does nothing."""
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=Parser)
    for name, module in modules.items():
        module.configure(add_command(commands, name, module.__doc__ or "", getattr(module, "run", None)))


def add_command(commands: Any, name: str, about: str, act: Callable[..., int] | None) -> argparse.ArgumentParser:
    """A new command, with ``--json`` behind its own name too."""
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=about.partition("\n")[0].rstrip("."), description=about
    )
    made.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
    made.set_defaults(act=act, called=made.prog)
    return made


def listed(text: str | None) -> list[str]:
    """The parts of an option's text between commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def answer(options: argparse.Namespace, facts: object, show: Callable[[], None]) -> None:
    """A result: as JSON where that is asked for, else as ``show`` prints it."""
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        show()
