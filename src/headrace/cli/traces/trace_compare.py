"""Hold two traces against each other: what differs by more than noise."""

import argparse

from rich.table import Table

from headrace.cli import answer
from headrace.cli.screen import screen, table
from headrace.trace.analysis.compare import LoaderComparison, TraceComparison, compare
from headrace.trace.analysis.number_format import digits, seconds
from headrace.trace.analysis.select import chosen
from headrace.trace.reader import read


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="a trace that headrace wrote")
    parser.add_argument("second", metavar="B", help="another one")
    parser.add_argument("--loader", metavar="NAME", help="only this loader of both")


def run(options: argparse.Namespace) -> int:
    first, second = (chosen(read(file), loader=options.loader) for file in (options.first, options.second))
    found = compare(first, second)
    answer(options, found.data(), lambda: _show(found))
    return 0


def _show(found: TraceComparison) -> None:
    out = screen()
    out.print(f"A: {found.first}\nB: {found.second}")
    for loader in found.loaders:
        out.print(_table(loader))
        for trace, names in (("A", loader.only_first), ("B", loader.only_second)):
            if names:
                out.print(f"only in {trace}: {', '.join(names)}")
    out.print(
        f"Means; the interval covers the change with {found.confidence:.0%} confidence as far as each run varies "
        "within itself. Two runs at different times may differ for other reasons: compare several.",
        style="dim",
    )


def _table(loader: LoaderComparison) -> Table:
    made = table(loader.loader, "", "A", "B", "change", "interval")
    for one in loader.differences:
        shown = [seconds(value) if one.unit == "s" else f"{digits(value)}/s" for value in (one.first, one.second)]
        between = "" if one.low is None or one.high is None else f"{one.low:+.1%} to {one.high:+.1%}"
        made.add_row(one.name, *shown, one.words, between, style="bold" if one.seen else "dim")
    return made
