"""Write a trace as a timeline for Perfetto, chrome://tracing or TensorBoard."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from headrace.cli import UsageError, answer

LEVEL = 5
"""Of compression: higher ones take twice as long for a twentieth less."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    add_options(parser)
    parser.add_argument("-o", "--output", metavar="OUT", help="where to (FILE.json.gz); compressed if it ends with .gz")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is the same for every timeline."""
    parser.add_argument("--coarse", action="store_true", help="batches only, no samples and operations")


def run(options: argparse.Namespace) -> int:
    """Read and write."""
    from headrace.trace import chrome
    from headrace.trace.reader import read

    trace = read(options.file)
    output = Path(options.output or f"{options.file}.json.gz")
    return write(options, output, [options.file], lambda file: chrome.write(trace, file, coarse=options.coarse))


def write(options: argparse.Namespace, output: Path, sources: list[str], events: Callable[[IO[str]], int]) -> int:
    """Write what ``events`` writes, over none of the ``sources``, and say so; the exit code."""
    for source in sources:
        if output.exists() and output.samefile(source):
            raise UsageError(f"-o {output}: that is {source}, which is read; choose another name")
    try:
        compressed = output.suffix == ".gz"
        with gzip.open(output, "wt", LEVEL, "utf-8") if compressed else output.open("w", encoding="utf-8") as file:
            count = events(file)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror})") from error
    facts = {"output": str(output), "events": count, "bytes": output.stat().st_size}
    answer(options, facts, lambda: print(f"{output}: {count} events; open it at ui.perfetto.dev", file=sys.stderr))
    return 0
