"""Write a trace as a timeline for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.cli import UsageError

SUFFIXES = {"chrome": ".json", "perfetto": ".pftrace"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    parser.add_argument("--format", choices=[*SUFFIXES], default="perfetto", help="what to write (perfetto)")
    parser.add_argument("--coarse", action="store_true", help="batches only, no samples and operations")
    parser.add_argument("-o", "--output", metavar="OUT", help="where to (beside FILE)")


def run(options: argparse.Namespace) -> int:
    """Read and write."""
    from headrace.trace import chrome, perfetto
    from headrace.trace.reader import read

    trace = read(options.file)
    output = Path(options.output or options.file + SUFFIXES[options.format])
    if output.exists() and output.samefile(options.file):
        raise UsageError(f"-o {output}: that is the trace itself; choose another name")
    try:
        if options.format == "chrome":
            with output.open("w") as text:
                count = chrome.write(trace, text, coarse=options.coarse)
        else:
            with output.open("wb") as binary:
                count = perfetto.write(trace, binary, coarse=options.coarse)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror})") from error
    result = {"output": str(output), "events": count, "bytes": output.stat().st_size}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{output}: {count} events; open it at ui.perfetto.dev", file=sys.stderr)
    return 0
