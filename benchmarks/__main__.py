"""``python -m benchmarks [name ...] [--only CASE ...] [--minutes M] [--quick] [--json]``: run, write the results.

Without names all of them run, within an hour, or with ``--quick`` within ten minutes: each may take its share of the
time that is left (`benchmarks.shares`), some with fewer cases, or short. Those about a GPU are passed over where there
is none. One that fails is said, and the others run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

import torch
from rich.console import Console

from benchmarks import caches, clock
from benchmarks.report import Report
from benchmarks.scope import LeftOut, Scope
from benchmarks.shares import MINUTES, QUICK_MINUTES, SHARES, Allowance, taking_part

EXPERIMENTS = tuple(SHARES)


def asked() -> tuple[argparse.Namespace, dict[str, ModuleType]]:
    """The command line, and the experiments it means."""
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
        f"(all together: {MINUTES:g}, --quick {QUICK_MINUTES:g}; those named: no limit)",
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    names = arguments.names or taking_part(quick=arguments.quick, gpu=torch.cuda.is_available())
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    for name, module in modules.items():
        wrong = [case for case in arguments.only if case not in getattr(module, "CASES", ())]
        if wrong:
            there = ", ".join(map(repr, getattr(module, "CASES", ()))) or "none to choose from"
            parser.error(f"{name} has no case {wrong[0]!r}; there are {there}")
    return arguments, modules


def main() -> int:
    """Run the named experiments, or all; the exit code is 0 whatever the figures say, 1 where one failed."""
    arguments, modules = asked()
    torch.set_num_threads(1)  # forked runs must not find a thread pool, and all compute alike
    log = Console(stderr=True, highlight=False)
    if not arguments.names and (left_out := [name for name in EXPERIMENTS if name not in modules]):
        log.print(f"left out: {', '.join(left_out)}", markup=False)
    reports, failed = [], []
    with stoppable() as stopped:
        for (name, module), mine in zip(modules.items(), shares(arguments, list(modules)), strict=True):
            log.rule(name)
            try:
                made = conduct(name, module, mine, log)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (the others are to run whatever became of one)
                if not isinstance(error, SystemExit):
                    traceback.print_exc()
                log.print(f"{name}: failed: {error}", markup=False)
                failed.append(name)
                continue
            finally:
                caches.sweep()
            if made is not None:
                report, path = made
                reports.append(report.data())
                if not arguments.json:
                    report.show(Console(width=None if sys.stdout.isatty() else 140))
                log.print(f"written: {path.relative_to(path.parents[2 + mine.quick])}", markup=False)
            if stopped:
                break
    if arguments.json:
        print(json.dumps(reports, indent=1))
    if failed:
        log.print(f"failed: {', '.join(failed)}", markup=False)
    return 128 + stopped[0] if stopped else int(bool(failed))


def shares(arguments: argparse.Namespace, names: list[str]) -> Iterator[argparse.Namespace]:
    """What each may do, made when it begins: those named everything, in a run of all what fits into its share."""
    every = not arguments.names
    together = (QUICK_MINUTES if arguments.quick else MINUTES) if every else float("inf")
    weights = [(SHARES[name].quick if arguments.quick else SHARES[name].minutes) if every else 1.0 for name in names]
    allowance = Allowance(together, weights)
    for name in names:
        minutes, mine = allowance.next(), argparse.Namespace(**vars(arguments))
        mine.minutes = minutes if arguments.minutes is None else arguments.minutes
        if every:
            mine.only, mine.quick = mine.only or list(SHARES[name].cases), mine.quick or SHARES[name].short
        yield mine


def conduct(name: str, module: ModuleType, arguments: argparse.Namespace, log: Console) -> tuple[Report, Path] | None:
    """Run one experiment and write its results: all of them, or those of the cases that were finished in time.

    None where there are none.
    """
    saved = 0
    report = Report(name, module.__doc__ or "", quick=arguments.quick)

    def say(text: str) -> None:
        """Between runs: what is finished by now is kept, whatever becomes of the rest."""
        nonlocal saved
        log.print(text, style="dim", markup=False)
        if len(report.tables) > saved:
            saved = len(report.tables)
            report.write(unfinished=True)

    began = time.monotonic()
    clock.end_by(began + 60 * arguments.minutes)
    scope = Scope(arguments.quick, arguments.only, say)
    try:
        module.run(report, scope)
    except LeftOut as reason:
        log.print(f"{name}: left out: {reason}", markup=False)
        return None
    except (clock.OutOfTime, KeyboardInterrupt) as reason:
        why = "out of time" if isinstance(reason, clock.OutOfTime) else "stopped"
        log.print(f"{name}: {why}", markup=False)
        if not report.tables:
            log.print("no case was finished; nothing is written", markup=False)
            return None
        report.notes.append(f"{why} after {(time.monotonic() - began) / 60:.1f} minutes: not all cases are here")
        return report, report.write(unfinished=True)
    report.part = scope.part
    if scope.only:
        report.notes.append(f"only: {', '.join(sorted(scope.only))}")
    report.notes.append(f"took {(time.monotonic() - began) / 60:.1f} minutes in all")
    if clock.shortened:
        report.notes.append(f"in {arguments.minutes:.1f} minutes: {', '.join(dict.fromkeys(clock.shortened))}")
    return report, report.write()


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
