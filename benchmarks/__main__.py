"""``python -m benchmarks [name ...] [--quick] [--json]``: run experiments, write their results."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

import torch
from rich.console import Console

EXPERIMENTS = (
    *("overhead", "startup", "images", "scheduling", "burning", "policies"),
    *("ablation", "accuracy", "memory", "gpu"),
)


def main() -> int:
    """Run the named experiments, or all; the exit code is 0 whatever the figures say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of: {', '.join(EXPERIMENTS)} (all)")
    parser.add_argument("--quick", action="store_true", help="few repeats and short epochs, to try it out")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    torch.set_num_threads(1)  # forked runs must not find a thread pool, and all compute alike
    log = Console(stderr=True, highlight=False)
    reports = []
    for name in arguments.names or EXPERIMENTS:
        log.rule(name)
        report = importlib.import_module(f"benchmarks.{name}").run(
            quick=arguments.quick, say=lambda text: log.print(text, style="dim", markup=False)
        )
        if report is None:
            continue
        path = report.write()
        reports.append(report.data())
        if not arguments.json:
            report.show(Console(width=None if sys.stdout.isatty() else 140))
        log.print(f"written: {path.relative_to(path.parents[2 + arguments.quick])}", markup=False)
    if arguments.json:
        print(json.dumps(reports, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
