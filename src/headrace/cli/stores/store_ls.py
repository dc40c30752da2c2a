"""List rows of a store and their metadata, some or those for which a condition holds. Payloads are not read.

Without a condition no more is read than is shown: the first rows by key, or those that the store finds first.
"""

import argparse
from contextlib import closing

from headrace.cli import UsageError, answer, listed
from headrace.cli.screen import screen, table
from headrace.store.catalogues.looking import RowListing, listing
from headrace.store.locate import open_store
from headrace.store.wording import one_line

LIMIT = 50
LONGEST = 60
"""Letters of a value that are shown; the JSON has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("--where", metavar="CONDITION", help="only rows like \"patient = 'P7' OR site IS NULL\"")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"N rows ({LIMIT}); 0: all, by key")
    parser.add_argument("--columns", metavar="A,B,...", help="the metadata to show (all)")


def run(options: argparse.Namespace) -> int:
    """Print the rows; JSON has what the whole store has, too."""
    if options.limit < 0:
        raise UsageError(f"--limit: {options.limit} is no number of rows; 0 is all")
    names = None if options.columns is None else listed(options.columns)
    with closing(open_store(options.url)) as store:
        found = listing(store, options.where, options.limit or None, names)
    facts = {"store": store.name, "rows": found.rows, "chosen": found.chosen, "samples": found.samples}
    answer(options, facts, lambda: _show(store.name, found))
    return 0


def _show(name: str, found: RowListing) -> None:
    out = screen()
    if found.samples:
        made = table("", *found.samples[0], left=len(found.samples[0]))
        for sample in found.samples:
            made.add_row(*(cell(value) for value in sample.values()))
        out.print(made)
    out.print(f"{name}: {_counted(found)}")


def _counted(found: RowListing) -> str:
    if found.rows is None or found.chosen is None:
        return f"{len(found.samples)} rows, and perhaps more: --limit 0 shows all, headrace store info counts them"
    of = f"{found.chosen} of {found.rows} rows" if found.chosen < found.rows else f"{found.rows} rows"
    rest = found.chosen - len(found.samples)
    return of + (f", {rest} not shown: --limit 0 shows all" if rest else "")


def cell(value: object) -> str:
    """A value as a table shows it: nothing for what is missing."""
    return "" if value is None else one_line(str(value), LONGEST)
