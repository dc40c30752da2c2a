"""Write a store out as files: a folder with a manifest, or WebDataset tars, that can be ingested again."""

import argparse
from contextlib import closing
from pathlib import Path

from headrace.cache.cache_options import parse_size
from headrace.cli import UsageError, answer
from headrace.cli.screen import counting
from headrace.store.catalogues.looking import matching
from headrace.store.export import export
from headrace.store.locate import open_store

SHARD = "1GiB"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("target", metavar="FOLDER", help="a folder that is not there yet")
    parser.add_argument("--tars", action="store_true", help="WebDataset shards instead of single files")
    parser.add_argument("--shard-size", metavar="SIZE", help=f"of a tar, about: 500MB, 2GiB ({SHARD})")
    parser.add_argument("--where", metavar="CONDITION", help="only rows like \"site = 'a' AND age >= 18\"")


def run(options: argparse.Namespace) -> int:
    """Write, with a bar on the terminal, and say how it is ingested again."""
    if options.shard_size is not None and not options.tars:
        raise UsageError("--shard-size is about tars: --tars")
    try:
        size = parse_size(options.shard_size or SHARD, "--shard-size") if options.tars else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    with closing(open_store(options.url)) as store:
        keys = None if options.where is None else matching(store, options.where)
        with counting("exporting") as progress:
            done = export(store, Path(options.target), keys, size, progress)
    facts = {"samples": done.samples, "payload_bytes": done.payload_bytes, "ingest": done.again}
    told = f"{done.target}: {done.samples} samples ({done.payload_bytes / 1e6:.1f} MB) of {store.name}\n  {done.again}"
    answer(options, {"store": store.name, "target": done.target, **facts}, lambda: print(told))
    return 0
