"""Run a program with several numbers of workers and compare.

Compared are elapsed time, and CPU seconds and counters of every operation.
"""

import argparse
import json
import resource
import shlex
import sys
import tempfile
from pathlib import Path

from headrace.cli import UsageError, answer
from headrace.cli.program_argument import add_program, required
from headrace.cli.traces import hw_tables
from headrace.cli.traces.trace_hw import add_sampling, events_of, printed, traced
from headrace.core.errors import TraceError
from headrace.trace.hardware import chart, profile, records, runner
from headrace.trace.hardware.profile import Profile
from headrace.trace.hardware.runner import ProgramRun
from headrace.trace.hardware.study import Study, run_of

PLACE = "{workers}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", default="1,2,4", metavar="N,...", help="numbers of workers (1,2,4)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write a page (.html) or data (.json)")
    add_sampling(parser)
    add_program(parser, f"what to run; {PLACE} stands for the number")


def run(options: argparse.Namespace) -> int:
    program = required(options)
    workers = _workers(options.workers)
    if options.frequency < 1:
        raise UsageError("--frequency must be at least 1")
    if not any(PLACE in word for word in program):
        raise UsageError(
            f"the program must take the number of workers: put {PLACE} where it goes, as in --workers {PLACE}"
        )
    if options.output and Path(options.output).suffix not in {".html", ".json"}:
        raise UsageError(f"-o {options.output}: the name must end in .html or .json")
    found, code = _studied(options, program, workers)
    if code:
        return code
    _write(options, found, shlex.join(program))
    answer(options, found.data(), lambda: hw_tables.show_study(found))
    return 0


def _workers(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise UsageError(f"--workers {text}: give numbers with commas between them, as in 1,2,4")
    return found


def _studied(options: argparse.Namespace, program: list[str], workers: list[int]) -> tuple[Study, int]:
    """The study, or the exit code of the first run that failed."""
    found = Study()
    events = events_of(options)
    with tempfile.TemporaryDirectory(prefix="headrace-study-") as folder:
        for count in workers:
            command = [word.replace(PLACE, str(count)) for word in program]
            path = Path(folder) / f"{count}.trace"
            began = _cpu()
            ran: ProgramRun
            joined: Profile | None = None
            sampling = not found.notes  # once it was refused it is not tried again: runs must be alike to be compared
            if sampling:
                try:
                    ran = runner.sampled(command, path, events, options.frequency, printed(options))
                except TraceError as error:
                    if "cannot run" in str(error) or events:  # the program's fault, or events that were asked for
                        raise
                    found.notes.append(f"Without samples: {error}")
                    sampling = False
            if not sampling:
                ran = runner.plain(command, path, None, printed(options))
            if ran.code:
                print(
                    f"headrace trace study: with {count} workers the program ended with exit code {ran.code}",
                    file=sys.stderr,
                )
                return found, ran.code
            cpu = _cpu() - began
            _, trace = traced(ran, path)
            if sampling:
                joined = profile.profile(trace, records.read(profile.beside(path)))
            found.runs.append(run_of(count, ran.seconds, cpu, trace, joined))
            print(f"{count} workers: {ran.seconds:.2f} s", file=sys.stderr)
    return found, 0


def _cpu() -> float:
    """CPU seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write(options: argparse.Namespace, found: Study, command: str) -> None:
    if not options.output:
        return
    path = Path(options.output)
    text = json.dumps(found.data(), indent=1) + "\n" if path.suffix == ".json" else chart.page(found, command)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written ({error.strerror})") from None
