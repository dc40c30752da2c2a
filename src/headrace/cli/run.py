"""Run an unmodified program with torch's DataLoader replaced by headrace's.

The replacement reaches the program's process and all that it starts. Nothing of yours is edited. With --compare
the program runs with both loaders, and what is gained is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import UsageError, answer
from headrace.cli.program_argument import add_program, in_the_way, required
from headrace.trace.format import IN_THE_WAY

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.running.comparison import BothLoaders
    from headrace.running.program import Ran

BATCHES = 100
NONE = (
    "no DataLoader of torch's was iterated: the program uses none, brings its own, or its Python is started "
    "with -S, -E or -I, or has no headrace installed"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loader", choices=("headrace", "torch"), default="headrace", help="torch: leave it, and record it (headrace)"
    )
    parser.add_argument("--trace", metavar="FILE", help="record there; with --loader torch the default is torch.trace")
    parser.add_argument(
        "--compare",
        nargs="?",
        type=int,
        const=BATCHES,
        metavar="BATCHES",
        help=f"run it twice with each loader, each time for so many batches ({BATCHES}; 0: to its end)",
    )
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    program = required(options)
    if options.compare is not None:
        if options.compare < 0:
            raise UsageError("--compare takes a number of batches, 0 for the whole program")
        if options.trace or options.loader != "headrace":
            raise UsageError("--compare runs both loaders and records neither: leave --loader and --trace out")
        return _compare(options, program)
    return _once(options, program)


def _once(options: argparse.Namespace, program: list[str]) -> int:
    from headrace.running.orders import RunOrders
    from headrace.running.program import run as program_run

    trace = options.trace or ("torch.trace" if options.loader == "torch" else None)
    if trace is not None and not Path(trace).absolute().parent.is_dir():
        raise UsageError(f"--trace {trace}: there is no such folder")
    if trace is not None and Path(trace).is_dir():
        raise UsageError(f"--trace {trace}: this is a folder; name a file in it")
    if trace is not None and in_the_way(Path(trace)):
        raise UsageError(f"--trace {trace}: {IN_THE_WAY}")
    if trace is not None and not os.access(Path(trace).absolute().parent, os.W_OK):
        raise UsageError(f"--trace {trace}: nothing can be written in that folder; name a file in another with --trace")
    with tempfile.TemporaryDirectory(prefix="headrace-run-") as folder:
        ran = program_run(program, RunOrders(folder, options.loader), trace, quiet=options.json)
    facts = {"code": ran.code, "loader": options.loader, "trace": trace, "processes": ran.data()}
    answer(options, facts, lambda: _tell(*_said(ran, options.loader, trace)))
    return ran.code


def _said(ran: Ran, loader: str, trace: str | None) -> list[str]:
    used = [report.loaders for report in ran.reports if report.loaders]
    made = sum(used)
    if not made and ran.code:
        return [f"the program ended with exit code {ran.code} before it iterated a DataLoader of torch's"]
    if not made:
        return [NONE]
    lines = [f"{made} loader{'s' * (made > 1)} in {len(used)} process{'es' * (len(used) > 1)}: {loader}"]
    if trace is not None and Path(trace).exists():
        lines.append(f"recorded; see it with: headrace trace report {trace}")
    return lines


def _compare(options: argparse.Namespace, program: list[str]) -> int:
    from headrace.cli.screen import screen
    from headrace.running.comparison import NothingToCompare, compare

    try:
        found = compare(program, {"batches": options.compare}, _tell)
    except NothingToCompare as error:
        _tell(str(error))
        return error.code
    answer(options, {**asdict(found), "gain": found.gain, "verdict": found.verdict}, lambda: show(found, screen()))
    return 0


def _tell(*lines: str) -> None:
    for line in lines:
        print(f"headrace run: {line}", file=sys.stderr)


def show(found: BothLoaders, out: Console) -> None:
    """Print both loaders in a table, and what that means."""
    from headrace.cli.screen import table
    from headrace.running.meter import Neighbours

    made = table("", "loader", "workers", "batches/s", "waited", "CPU/batch", "first batch")
    lines = [("torch", found.torch), ("headrace", found.headrace)]
    if found.automatic is not None:
        lines.append(("headrace, None", found.automatic))
    for loader, figures in lines:
        cpu = f"{figures.cpu * 1e3:.1f} ms" if figures.cpu else "-"
        rate, wait, first = f"{figures.rate:.2f}", f"{figures.wait:.1%}", f"{figures.first:.2f} s"
        made.add_row(loader, str(figures.workers), rate, wait, cpu, first)
    out.print(made)
    if found.torch.cpu and found.headrace.cpu:
        out.print("CPU/batch: all processes', over the batches that came; what was made ahead is in it.", style="dim")
    out.print(found.verdict)
    if remark := Neighbours.remark(found.others):
        out.print(remark, style="yellow")
    for what in found.left_alone:
        out.print(f"left alone: {what}", style="yellow")
