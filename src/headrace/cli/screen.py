"""Console of the commands: tables and progress."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PIPE_WIDTH = 140
"""Columns where there is no terminal to ask, nor anybody who said how many."""
WIDEST = {"operation": 24, "function": 44, "library": 28}
"""Letters of long names that are shown; the JSON has all."""
WHOLE = {"cache"}
"""Names that are typed again, in another command: shown whole, over several lines if need be."""


class PipeConsole(Console):
    """Console whose closed pipe is the caller's affair: rich would end the program, with an exit code of its own."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise  # noqa: PLE0704


def screen() -> Console:
    """The standard output. Texts are printed as they are: names of a user's things may look like markup, or emoji."""
    console = PipeConsole(markup=False, emoji=False, highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return PipeConsole(markup=False, emoji=False, highlight=False, width=PIPE_WIDTH)


def table(title: str, *headings: str, left: int = 1) -> Table:
    """An empty table, its first columns to the left. Long names give way in a narrow terminal; figures do not."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0)
    for at, heading in enumerate(headings):
        made.add_column(
            heading,
            justify="left" if at < left else "right",
            no_wrap=heading not in {*WIDEST, *WHOLE},
            overflow="fold" if heading in WHOLE else "ellipsis",
            max_width=WIDEST.get(heading),
        )
    return made


@contextmanager
def bar() -> Iterator[Progress | None]:
    """A progress bar on a terminal; nothing where nobody looks."""
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
    """A context that gives a function to call with how many are done, and perhaps of how many."""
    with bar() as shown:
        task = None if shown is None else shown.add_task(what, total=total)

        def progress(done: int, of: int | None = total) -> None:
            if shown is not None and task is not None:
                shown.update(task, completed=done, total=of)

        yield progress
