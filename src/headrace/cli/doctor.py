"""Say what limits loading on this machine: of a program, of a dataset, or of the machine alone.

The program runs for a few seconds with torch's loader, which is recorded, and with headrace's, with as many workers
and with as many as that chooses. What is said of it was measured then.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import UsageError, answer
from headrace.cli.program_argument import add_program, given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.running.comparison import BothLoaders
    from headrace.running.machine import Machine
    from headrace.trace.analysis.advice import Advice
    from headrace.trace.report import LoaderReport

SECONDS = 20.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", metavar="MODULE:NAME", help="load this dataset, or what calling it returns")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="with --dataset: samples a batch (32)")
    parser.add_argument("--workers", type=int, metavar="N", help="with --dataset: workers (one per core)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"how long to measure in all ({SECONDS:g})"
    )
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    from headrace.running.comparison import NothingToCompare
    from headrace.running.machine import Machine, concerns

    program = _program(options)
    machine = Machine.here()
    found = concerns(machine)
    try:
        measured = _measured(program, options.seconds) if program else None
    except NothingToCompare as error:
        _tell(str(error))
        return error.code if options.dataset is None else 2  # a dataset's program is ours
    answer(options, _data(machine, found, measured), lambda: _show(machine, found, measured))
    return 0


def _program(options: argparse.Namespace) -> list[str]:
    program = given(options)
    if (
        not 0 < options.seconds < math.inf
        or options.batch_size < 1
        or (options.workers is not None and options.workers < 0)
    ):
        raise UsageError("--seconds and --batch-size must be positive, --workers not negative")
    if options.dataset is None:
        return program
    if program:
        raise UsageError("a program or --dataset, not both")
    if ":" not in options.dataset:
        raise UsageError(f"--dataset {options.dataset}: write it as module:name, as in data:train_set")
    workers = len(os.sched_getaffinity(0)) if options.workers is None else options.workers
    numbers = ["--batch-size", str(options.batch_size), "--workers", str(workers)]
    return [sys.executable, "-m", "headrace.running.feed", options.dataset, *numbers]


def _measured(program: Sequence[str], seconds: float) -> tuple[BothLoaders, LoaderReport]:
    """Figures of both loaders, and the report on the trace of torch's."""
    from headrace.running.comparison import BY_ITSELF, compare
    from headrace.trace.calibrate import calibrate
    from headrace.trace.reader import read
    from headrace.trace.report import report

    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        trace = str(Path(folder) / "torch.trace")
        limits = {"seconds": seconds / (2 * len(BY_ITSELF))}
        compared = compare(program, limits, _tell, trace, BY_ITSELF)
        found = report(read(trace), calibrate(), len(os.sched_getaffinity(0)))
    return compared, max(found.loaders, key=lambda loader: loader.figures.batches)


def _tell(line: str) -> None:
    print(f"headrace doctor: {line}", file=sys.stderr)


def _data(
    machine: Machine, found: Sequence[Advice], measured: tuple[BothLoaders, LoaderReport] | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"machine": asdict(machine), "concerns": [asdict(advice) for advice in found]}
    if measured is None:
        return facts
    compared, loader = measured
    return facts | {
        "bottleneck": loader.verdict.bottleneck,
        "evidence": loader.verdict.evidence,
        "advice": [asdict(advice) for advice in loader.advice],
        "comparison": {**asdict(compared), "gain": compared.gain, "verdict": compared.verdict},
    }


def _show(machine: Machine, found: Sequence[Advice], measured: tuple[BothLoaders, LoaderReport] | None) -> None:
    from headrace.cli.run import show
    from headrace.cli.screen import screen
    from headrace.cli.traces.trace_tables import advise
    from headrace.trace.analysis.number_format import size

    out = screen()
    shm = "no /dev/shm" if machine.shm is None else f"{size(machine.shm)} free in /dev/shm"
    gpus = f"{machine.gpus} GPUs" if machine.gpus else "no GPU"
    out.print(f"This machine: {machine.quota:g} cores, {size(machine.memory)} of memory free, {shm}, {gpus}.")
    advise(found, out)
    if not found:
        out.print("  Nothing of it is short.")
    if measured is None:
        out.print("Give it a program to measure: headrace doctor -- python train.py", style="dim")
        return
    compared, loader = measured
    out.print("\nWith torch's loader:", style="bold")
    out.print(loader.verdict.meaning)
    for line in loader.verdict.evidence:
        out.print(f"  {line}")
    advise(loader.advice, out)
    out.print("\nWith headrace's:", style="bold")
    show(compared, out)
