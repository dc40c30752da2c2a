"""Train on a small uneven image set with torch's DataLoader and with headrace.

The images are made in a temporary folder: JPEG files of uneven size, some of them large, some
slow to read. Epochs with each loader in turn, the same workers, batches and samples; the table
shows medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from headrace.cli.contest import Entry, Outcome


MINIMA = {"images": 1, "workers": 1, "batch_size": 1, "rounds": 1, "stall": 0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--images", type=int, default=1024, help="images in the set (1024)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (4)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples in a batch (32)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs with each loader (3)")
    parser.add_argument("--stall", type=float, default=0.1, help="seconds a slow read takes (0.1)")


def run(options: argparse.Namespace) -> int:
    """Make the images, run the contest, print the table or JSON."""
    for name, least in MINIMA.items():
        if getattr(options, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}")
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise UsageError("needs rich to print: pip install 'headrace[cli]'") from None
    from headrace.cli import pictures
    from headrace.cli.contest import Contest

    pictures.require_pillow()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder, _progress(console) as bar:
        task = bar.add_task("making images", total=options.images)
        for _ in pictures.write(Path(folder), options.images):
            bar.update(task, advance=1, refresh=True)
        dataset = pictures.Pictures(Path(folder), stall=options.stall)
        contest = Contest(dataset, options.workers, options.batch_size)
        outcome = contest.run(options.rounds, bar)
    if options.json:
        json.dump(outcome.data(), sys.stdout, indent=1)
        print()
    else:
        _show(outcome, Console())
    return 0 if all(entry.complete for entry in outcome.entries) else 1


def _progress(console: Console) -> Progress:
    """Bars drawn by the main thread alone: workers are forked while they are on screen."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
    )


def _show(outcome: Outcome, console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rounds = len(outcome.entries[0].laps)
    title = f"{outcome.samples} images an epoch, {outcome.workers} workers, median of {rounds}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("loader", no_wrap=True)
    for heading in ("time", "wait", "ideal", "CPU/sample", "vs torch"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = outcome.entries[0].median("seconds")
    best = min(outcome.entries, key=lambda entry: entry.median("seconds"))
    for entry in outcome.entries:
        table.add_row(*_cells(entry, base, outcome), style="bold" if entry is best else "")
    console.print(table)
    console.print(
        "wait: blocked in next(), start-up included. CPU: main process and workers. "
        f"ideal: share of {outcome.ideal:.2f} s, the least that {outcome.ideal_reason} allows.",
        style="dim",
    )
    for entry in outcome.entries:
        if not entry.complete:
            console.print(f"{entry.name}: samples were lost or came twice", style="red")
        if entry.median("seconds") > base:
            console.print(f"{entry.name} was slower than torch in this run", style="yellow")
    others = max(entry.median("others") for entry in outcome.entries)
    if others > 0.2:
        console.print(f"Other programs used {others:.1f} cores meanwhile: times are not to be trusted.", style="yellow")
    if all(entry.complete for entry in outcome.entries):
        console.print("Every image came exactly once in each epoch.", style="dim")


def _cells(entry: Entry, base: float, outcome: Outcome) -> list[str]:
    seconds = entry.median("seconds")
    return [
        entry.name,
        f"{seconds:.2f} s",
        f"{entry.median('wait'):.2f} s",
        f"{outcome.ideal / seconds:.0%}",
        f"{entry.median('cpu') / outcome.samples * 1e3:.2f} ms",
        f"{base / seconds:.2f}x",
    ]
