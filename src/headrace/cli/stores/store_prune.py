"""Remove rows that have lost what they were made of.

Their file is gone or was replaced, or their source names them no more.

Without SOURCE the files of all rows are looked for. With it only rows that came from that folder, manifest or dataset
are judged: those that it still names stay. Asks before it removes anything.
"""

import argparse
from contextlib import closing

from headrace.cli import UsageError, answer
from headrace.cli.stores.store_rm import asking, removal, told
from headrace.store.catalogues.origin import TracingStore
from headrace.store.catalogues.pruning import WORDS, pruning, sources
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import open_source
from headrace.store.locate import open_store

MOST_PLACES = 20
"""Lines of the list; `--json` has all of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="what the rows were ingested from")
    parser.add_argument("--root", metavar="DIR", help="where the paths of the manifest begin, as when it was ingested")
    asking(parser)


def run(options: argparse.Namespace) -> int:
    with closing(open_store(options.url)) as store:
        if not isinstance(store, TracingStore):
            raise UsageError(f"{store.name}: such a store does not remember where its rows came from")
        rows = len(store.keys())
        named = _named(store, options) if options.source is not None else None
        found = pruning(rows, store.origins(), named)
        reasons = ", ".join(f"{count} {WORDS[reason]}" for reason, count in found.counts().items())
        if not options.json:
            for key, reason in list(found.keys.items())[:MOST_PLACES]:
                print(f"  {found.places[key]} ({reason})")
            if len(found.keys) > MOST_PLACES:
                print(f"  and {len(found.keys) - MOST_PLACES} more; --json lists them all")
        removed = removal(store, list(found.keys), f"{len(found.keys)} of {rows} rows: {reasons}", options)
    listed = [{"key": key, "place": found.places[key], "why": why} for key, why in found.keys.items()]
    lines = [told(store.name, len(found.keys), removed, options)]
    if found.unknown:
        lines.append(f"  {found.unknown} rows have no file that is known, and were left")
    done = {"store": store.name, "rows": rows, "removed": removed, "chosen": listed}
    answer(options, done, lambda: print(*lines, sep="\n"))
    return 0


def _named(store: object, options: argparse.Namespace) -> dict[str, set[str]]:
    """The places that the source names today."""
    assert isinstance(store, TracingStore)
    with closing(open_source(options.source, ReadOptions(root=options.root))) as source:
        known = sources(store.origins())
        if source.where.name not in known:
            others = ", ".join(f"{name} ({count})" for name, count in sorted(known.items())[:10])
            raise UsageError(
                f"no row came from {source.where.name}; rows came from {others or 'nowhere that is known'}"
            )
        return {source.where.name: {item.ident for item in source.items()}}
