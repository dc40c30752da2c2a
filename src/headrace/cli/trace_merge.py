"""Put a trace and one of torch.profiler on one timeline."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import trace_export


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    parser.add_argument(
        "torch", metavar="TORCH", help="what torch.profiler's export_chrome_trace wrote (.json, .json.gz)"
    )
    trace_export.add_options(parser)
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where to; compressed if it ends with .gz")


def run(options: argparse.Namespace) -> int:
    """Read both and write one."""
    from headrace.trace import merge
    from headrace.trace.reader import read

    trace, torch = read(options.file), merge.read_torch(options.torch)
    sources = [options.file, options.torch]
    return trace_export.write(
        options, Path(options.output), sources, lambda file: merge.write(trace, torch, file, coarse=options.coarse)
    )
