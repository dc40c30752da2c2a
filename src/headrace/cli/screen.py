"""Where commands print tables to, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PIPE_WIDTH = 80
"""Columns where there is no terminal to ask."""


def screen() -> Console:
    """The standard output. Texts are printed as they are: names of a user's things may look like markup."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=PIPE_WIDTH)


@contextmanager
def bar() -> Iterator[Progress | None]:
    """On a terminal, how far it is; nothing where nobody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as shown:
        yield shown


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """To be called with how many are done, and perhaps of how many."""
    with bar() as shown:
        task = None if shown is None else shown.add_task(what, total=total)

        def progress(done: int, of: int | None = total) -> None:
            if shown is not None and task is not None:
                shown.update(task, completed=done, total=of)

        yield progress
