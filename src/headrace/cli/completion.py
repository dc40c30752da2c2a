"""Print a script that completes this command in a shell.

For bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace
"""

from __future__ import annotations

import argparse

from headrace.cli import UsageError

SHELLS = ("bash", "zsh")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ModuleNotFoundError:
        raise UsageError("needs shtab: pip install 'headrace[completion]'") from None
    from headrace.cli.__main__ import parser

    print(shtab.complete(parser(), shell=options.shell))
    return 0
