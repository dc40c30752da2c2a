"""Show a few rows of a store: keys, labels, metadata, and what their payloads are."""

import argparse
from contextlib import closing

from headrace.cli import UsageError, answer
from headrace.cli.screen import screen, table
from headrace.cli.stores.store_ls import cell
from headrace.store.catalogues.looking import form, listing, shown
from headrace.store.locate import open_store
from headrace.trace.analysis.number_format import size

FIRST = 5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("-n", type=int, default=FIRST, metavar="N", dest="number", help=f"how many rows ({FIRST})")
    parser.add_argument("--where", metavar="CONDITION", help="only rows like \"patient = 'P7' OR site IS NULL\"")


def run(options: argparse.Namespace) -> int:
    """Read that many payloads and say what they are."""
    if options.number < 1:
        raise UsageError(f"-n: {options.number} is no number of rows")
    with closing(open_store(options.url)) as store:
        found = listing(store, options.where, options.number, ["key"])
        rows = shown(store, [sample["key"] for sample in found.samples])
    samples = [
        {
            **facts,
            "label": facts.get("label", told_label(row.label)),
            "bytes": len(row.payload),
            "form": form(row.payload),
        }
        for facts, row in rows
    ]

    def show() -> None:
        out = screen()
        if samples:
            made = table("", *samples[0], left=len(samples[0]))
            for sample in samples:
                made.add_row(*(cell(value) for value in sample.values()))
            out.print(made)
        of = "" if found.chosen is None else f" of {found.chosen}"
        out.print(f"{store.name}: {len(samples)}{of} rows")

    answer(options, {"store": store.name, "rows": found.rows, "chosen": found.chosen, "samples": samples}, show)
    return 0


def told_label(label: object) -> object:
    """A label as it is shown: what a file is and how large, not its bytes."""
    if isinstance(label, (bytes, memoryview)):
        return f"{form(label)}, {size(len(label))}"
    return label
