"""Put a trace and one of torch.profiler on one timeline."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    parser.add_argument(
        "torch", metavar="TORCH", help="what torch.profiler's export_chrome_trace wrote (.json, .json.gz)"
    )
    parser.add_argument("--coarse", action="store_true", help="batches only, no samples and operations")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where to")


def run(options: argparse.Namespace) -> int:
    """Read both and write one."""
    from headrace.trace import merge
    from headrace.trace.reader import read

    trace, torch = read(options.file), merge.read_torch(options.torch)
    output = Path(options.output)
    for source in (options.file, options.torch):
        if output.exists() and output.samefile(source):
            raise UsageError(f"-o {output}: that is one of the two to read; choose another name")
    try:
        with output.open("w") as file:
            count = merge.write(trace, torch, file, coarse=options.coarse)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror})") from error
    if options.json:
        print(json.dumps({"output": str(output), "events": count, "bytes": output.stat().st_size}))
    else:
        print(f"{output}: {count} events; open it at ui.perfetto.dev", file=sys.stderr)
    return 0
