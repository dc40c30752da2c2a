"""Where commands print tables to."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 100
"""Columns where there is no terminal to ask."""


def screen() -> Console:
    """The standard output. Texts are printed as they are: names of a user's things may look like markup."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=PIPE_WIDTH)
