"""``python -m benchmarks [name ...] [--only CASE ...] [--minutes M] [--quick] [--json]``: run, write the results.

Without names all of them run, within an hour, or with ``--quick`` within ten minutes: each may take its share of the
time that is left. Those about a GPU are passed over where there is none.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

import torch
from rich.console import Console

from benchmarks import measure
from benchmarks.report import Report

EXPERIMENTS = (
    "overhead",
    "startup",
    "images",
    "scheduling",
    "burning",
    "policies",
    "ablation",
    "accuracy",
    "cached_accuracy",
    "device_accuracy",
    "memory",
    "pressure",
    "gpu",
    "delivery",
    "busy",
    "resnet",
    "on_device",
    "profilers",
    "attribution",
    "pipelines",
    "ceiling",
    "keeping",
    "scale",
    "hits",
    "sharing",
    "splits",
    "throttled",
    "makespan",
    "network",
    "cluster",
    "streaming",
)


ABOUT_GPUS = frozenset({"gpu", "delivery", "busy", "resnet", "on_device"})
ALL_MINUTES, ALL_QUICK_MINUTES = 60.0, 10.0
"""What all experiments may take together."""


class Allowance:
    """Minutes that each of several experiments may take: what one leaves, the others have."""

    def __init__(self, minutes: float, experiments: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end, self._left = clock, clock() + 60 * minutes, experiments

    def next(self) -> float:
        """Of the one that begins now."""
        minutes = max(0.0, self._end - self._clock()) / 60 / max(1, self._left)
        self._left -= 1
        return minutes


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
        "--minutes",
        type=float,
        help="end each experiment in this time: with fewer repeats, or with the cases finished by then "
        f"(all together: {ALL_MINUTES:g}, --quick {ALL_QUICK_MINUTES:g}; those named: no limit)",
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    passed_over = frozenset() if torch.cuda.is_available() else ABOUT_GPUS
    names = arguments.names or [name for name in EXPERIMENTS if name not in passed_over]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    for name, module in modules.items():
        wrong = [case for case in arguments.only if case not in getattr(module, "CASES", ())]
        if wrong:
            there = ", ".join(map(repr, getattr(module, "CASES", ()))) or "none to choose from"
            parser.error(f"{name} has no case {wrong[0]!r}; there are {there}")
    torch.set_num_threads(1)  # forked runs must not find a thread pool, and all compute alike
    log = Console(stderr=True, highlight=False)
    reports = []
    together = float("inf") if arguments.names else ALL_QUICK_MINUTES if arguments.quick else ALL_MINUTES
    allowance, each = Allowance(together, len(modules)), arguments.minutes
    with stoppable() as stopped:
        for name, module in modules.items():
            log.rule(name)
            arguments.minutes = allowance.next() if each is None else each
            report, path = conduct(name, module, arguments, log)
            if report is not None and path is not None:
                reports.append(report.data())
                if not arguments.json:
                    report.show(Console(width=None if sys.stdout.isatty() else 140))
                log.print(f"written: {path.relative_to(path.parents[2 + arguments.quick])}", markup=False)
            if stopped:
                break
    if arguments.json:
        print(json.dumps(reports, indent=1))
    return 128 + stopped[0] if stopped else 0


def conduct(
    name: str, module: ModuleType, arguments: argparse.Namespace, log: Console
) -> tuple[Report | None, Path | None]:
    """Run one experiment and write its results: all of them, or those of the cases that were finished in time."""
    saved = 0
    Report.latest = None

    def say(text: str) -> None:
        """Between runs: what is finished by now is kept, whatever becomes of the rest."""
        nonlocal saved
        log.print(text, style="dim", markup=False)
        if Report.latest is not None and len(Report.latest.tables) > saved:
            saved = len(Report.latest.tables)
            Report.latest.write(unfinished=True)

    began = time.monotonic()
    measure.end_by(began + 60 * arguments.minutes)
    scope = {"only": arguments.only, "minutes": arguments.minutes} if hasattr(module, "CASES") else {}
    try:
        report = module.run(quick=arguments.quick, say=say, **scope)
    except (measure.OutOfTime, KeyboardInterrupt) as reason:
        report = Report.latest
        why = "out of time" if isinstance(reason, measure.OutOfTime) else "stopped"
        log.print(f"{name}: {why}", markup=False)
        if report is None or not report.tables:
            log.print("no case was finished; nothing is written", markup=False)
            return None, None
        report.notes.append(f"{why} after {(time.monotonic() - began) / 60:.1f} minutes: not all cases are here")
        return report, report.write(unfinished=True)
    return report, None if report is None else report.write()


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """SIGTERM stops as Ctrl-C does: once, and after what is finished was written. The list then has the signal."""
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not stopped:
            stopped.append(number)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
