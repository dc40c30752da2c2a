"""Write a store out as files: a folder with a manifest, or WebDataset tars, that can be ingested again."""

import argparse
from pathlib import Path

from headrace.cli import UsageError, answer
from headrace.cli.screen import counting
from headrace.cli.store_rm import chosen
from headrace.store.export import export
from headrace.store.locate import open_store

SHARD = 1 << 30
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("target", metavar="FOLDER", help="a folder that is not there yet")
    parser.add_argument("--tars", action="store_true", help="WebDataset shards instead of single files")
    parser.add_argument("--shard-size", metavar="BYTES", help="of a tar, about: 500M, 2G (1G)")
    parser.add_argument("--where", metavar="CONDITION", help="only rows like \"site = 'a' AND age >= 18\"")


def run(options: argparse.Namespace) -> int:
    """Write, with a bar on the terminal, and say how it is ingested again."""
    if options.shard_size is not None and not options.tars:
        raise UsageError("--shard-size is about tars: --tars")
    size = _bytes(options.shard_size) if options.tars else None
    store = open_store(options.url)
    try:
        keys = None if options.where is None else chosen(store, options.where)
        with counting("exporting") as progress:
            done = export(store, Path(options.target), keys, size, progress)
    finally:
        store.close()
    facts = {"samples": done.samples, "payload_bytes": done.payload_bytes, "ingest": done.again}
    told = f"{done.target}: {done.samples} samples ({done.payload_bytes / 1e6:.1f} MB) of {store.name}\n  {done.again}"
    answer(options, {"store": store.name, "target": done.target, **facts}, lambda: print(told))
    return 0


def _bytes(text: str | None) -> int:
    if text is None:
        return SHARD
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    if unit not in UNITS or not number.isdecimal() or not int(number):
        raise UsageError(f"--shard-size: {text!r} is no number of bytes, such as 500M")
    return int(number) * UNITS[unit]
