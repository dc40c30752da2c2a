"""Put a trace and one of torch.profiler on one timeline."""

import argparse

from headrace.cli.traces.trace_export import add_options, run

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a trace that headrace wrote")
    parser.add_argument(
        "torch", metavar="TORCH", help="what torch.profiler's export_chrome_trace wrote (.json, .json.gz)"
    )
    add_options(parser)
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where to; compressed if it ends with .gz")
