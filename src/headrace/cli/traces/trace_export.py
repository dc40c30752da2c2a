"""Write a trace as a timeline for Perfetto, chrome://tracing or TensorBoard."""

import argparse
import gzip
import sys
from pathlib import Path

from headrace.cli import UsageError, answer
from headrace.trace import chrome
from headrace.trace.reader import read

LEVEL = 5
"""Of compression: higher ones take twice as long for a twentieth less."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    add_options(parser)
    parser.set_defaults(torch=None)
    parser.add_argument("-o", "--output", metavar="OUT", help="where to (FILE.json.gz); compressed if it ends with .gz")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is the same for every timeline."""
    parser.add_argument("--coarse", action="store_true", help="batches only, no samples and operations")


def run(options: argparse.Namespace) -> int:
    """Read the trace, and torch's where one is given, and write both to one file."""
    trace, torch = read(options.file), options.torch and chrome.read_torch(options.torch)
    output = Path(options.output or f"{options.file}.json.gz")
    for source in filter(None, (options.file, options.torch)):
        if output.exists() and output.samefile(source):
            raise UsageError(f"-o {output}: that is {source}, which is read; choose another name")
    try:
        compressed = output.suffix == ".gz"
        with gzip.open(output, "wt", LEVEL, "utf-8") if compressed else output.open("w", encoding="utf-8") as file:
            count = chrome.write(trace, file, coarse=options.coarse, torch=torch)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror})") from error
    facts = {"output": str(output), "events": count, "bytes": output.stat().st_size}
    answer(options, facts, lambda: print(f"{output}: {count} events; open it at ui.perfetto.dev", file=sys.stderr))
    return 0
