"""``python -m benchmarks [name ...] [--only CASE ...] [--minutes M] [--quick] [--json]``: run, write the results."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

import torch
from rich.console import Console

EXPERIMENTS = (
    "overhead",
    "startup",
    "images",
    "scheduling",
    "burning",
    "policies",
    "ablation",
    "accuracy",
    "memory",
    "pressure",
    "gpu",
    "delivery",
    "busy",
    "profilers",
    "attribution",
    "pipelines",
    "hits",
)


def main() -> int:
    """Run the named experiments, or all; the exit code is 0 whatever the figures say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of: {', '.join(EXPERIMENTS)} (all)")
    parser.add_argument("--quick", action="store_true", help="few repeats and short epochs, to try it out")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CASE", help="these cases of an experiment that has several"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no repeat that would not end in this time"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in arguments.names or EXPERIMENTS}
    for name, module in modules.items():
        wrong = [case for case in arguments.only if case not in getattr(module, "CASES", ())]
        if wrong:
            there = ", ".join(map(repr, getattr(module, "CASES", ()))) or "none to choose from"
            parser.error(f"{name} has no case {wrong[0]!r}; there are {there}")
    torch.set_num_threads(1)  # forked runs must not find a thread pool, and all compute alike
    log = Console(stderr=True, highlight=False)
    reports = []
    for name, module in modules.items():
        log.rule(name)
        scope = {"only": arguments.only, "minutes": arguments.minutes} if hasattr(module, "CASES") else {}
        report = module.run(quick=arguments.quick, say=lambda text: log.print(text, style="dim", markup=False), **scope)
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
