"""Work of the processor in each operation of a program.

Runs the program with its trace on, samples it, and shows the C functions and counters of every operation.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.cli import UsageError, answer, listed
from headrace.cli.program_argument import add_program, in_the_way, required
from headrace.cli.traces import hw_tables
from headrace.trace.format import IN_THE_WAY
from headrace.trace.hardware import callgrind_file, mapping, profile, records, runner, vendor
from headrace.trace.hardware.perf_events import event
from headrace.trace.hardware.profile import Profile, beside
from headrace.trace.hardware.runner import ProgramRun
from headrace.trace.reader import Trace, read
from headrace.trace.session import COUNTED

FREQUENCY = 997
LL_CACHE = "33554432,16,64"
"""The last-level cache that valgrind models: 32 MiB, 16 ways; it guesses those of new processors wrong."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        default="headrace.trace",
        metavar="FILE",
        help="the trace (headrace.trace); its samples go to FILE.hw",
    )
    add_sampling(parser)
    parser.add_argument(
        "--mapping", metavar="FILE", help="write operations and their C functions as JSON; with --import: read them"
    )
    parser.add_argument("--top", type=int, default=6, metavar="N", help="functions to show of each operation (6)")
    parser.add_argument("--read", metavar="FILE", help="show the trace FILE and the samples beside it, run nothing")
    parser.add_argument(
        "--import", dest="vendor", metavar="FILE", help="split a CSV export of Intel VTune or AMD uProf by --mapping"
    )
    parser.add_argument(
        "--callgrind", action="store_true", help="count instructions exactly under valgrind instead of sampling"
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=8,
        metavar="N",
        help="with --callgrind: calls of each operation to count in each process (8)",
    )
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    if options.frequency < 1 or options.top < 1 or options.calls < 1:
        raise UsageError("--frequency, --top and --calls must be at least 1")
    if options.vendor:
        return _imported(options)
    if options.read:
        _show(options, _joined(Path(options.read)))
        return 0
    program = required(options)
    return _counted(options, program) if options.callgrind else _sampled(options, program)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The arguments that ``events_of`` and a sampled run take."""
    parser.add_argument(
        "--frequency", type=int, default=FREQUENCY, metavar="HZ", help=f"samples per second and core ({FREQUENCY})"
    )
    parser.add_argument(
        "--events", metavar="NAME,...", help="events to sample beside the clock; default: those the machine has"
    )


def printed(options: argparse.Namespace) -> int | None:
    """The descriptor for the program's own output: not between ours where that is JSON."""
    return sys.stderr.fileno() if options.json else None


def events_of(options: argparse.Namespace) -> list[str] | None:
    """The events asked for; refused here when there are no such names."""
    if options.events is None:
        return None
    try:
        return [event(name).name for name in listed(options.events)]
    except ValueError as error:
        raise UsageError(f"--events: {error}") from None


def traced(ran: ProgramRun, output: Path) -> tuple[Path, Trace]:
    """The trace with the most samples of those that a program made. Raises UsageError when it made none.

    A script may name its own instead of the ``output`` it was told of.
    """
    if not ran.traces:
        beside(output).unlink(missing_ok=True)
        raise UsageError(
            f"the program recorded nothing to {output}: it must iterate a headrace.DataLoader, "
            "or a torch DataLoader in headrace.traced()"
        )
    return max(((path, read(path)) for path in ran.traces), key=lambda pair: len(pair[1].samples))


def _sampled(options: argparse.Namespace, program: list[str]) -> int:
    output = Path(options.output).absolute()
    _make_way(output)
    ran = runner.sampled(program, output, events_of(options), options.frequency, printed(options))
    if ran.code:
        print(f"headrace trace hw: the program ended with exit code {ran.code}", file=sys.stderr)
        if not ran.traces:  # it failed before it loaded anything, and has said why
            beside(output).unlink()
            return ran.code
    path, _ = traced(ran, output)
    _lay_beside(ran.traces, output)
    if path != output:
        print(f"headrace trace hw: the program named its trace itself: {path}", file=sys.stderr)
    for other in set(ran.traces) - {path}:
        print(f"headrace trace hw: it also recorded {other}; --read shows it", file=sys.stderr)
    _show(options, _joined(path))
    return ran.code


def _lay_beside(traces: Sequence[Path], output: Path) -> None:
    """The samples of a run, beside each trace that was made in it, so that each can be shown again."""
    for path in traces:
        if path != output:
            shutil.copyfile(beside(output), beside(path))
    if output not in traces:
        beside(output).unlink()


def _make_way(output: Path) -> None:
    """A trace that is there from before must not be taken for the new one; any other file is left alone."""
    if in_the_way(output):
        raise UsageError(f"-o {output}: {IN_THE_WAY}")
    output.unlink(missing_ok=True)


def _joined(path: Path) -> Profile:
    return profile.profile(read(path), records.read(beside(path)))


def _show(options: argparse.Namespace, found: Profile) -> None:
    if options.mapping:
        mapping.write(Path(options.mapping), mapping.mapping(found), found.primary)
    answer(options, profile.data(found), lambda: hw_tables.show_profile(found, options.top))


def _counted(options: argparse.Namespace, program: list[str]) -> int:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise UsageError("--callgrind needs valgrind: install the package of that name (apt-get install valgrind)")
    with tempfile.TemporaryDirectory(prefix="headrace-callgrind-") as folder:
        wrapped = [
            *(valgrind, "-q", "--tool=callgrind", "--trace-children=yes", "--instr-atstart=no", "--combine-dumps=yes"),
            *("--cache-sim=yes", "--branch-sim=yes", f"--LL={LL_CACHE}", f"--log-file={folder}/valgrind.%p.log"),
            f"--callgrind-out-file={folder}/callgrind.out.%p",
            *program,
        ]
        ran = runner.plain(wrapped, Path(folder) / "a.trace", {COUNTED: str(options.calls)}, printed(options))
        counts = callgrind_file.read(Path(folder))
    if not counts.operations:
        message = "no operation ran under valgrind: the program must iterate a headrace.DataLoader with num_workers=0"
        if not ran.code:
            raise UsageError(message)
        print(f"headrace trace hw: the program ended with exit code {ran.code}; {message}", file=sys.stderr)
        return ran.code
    if options.mapping:
        mapping.write(Path(options.mapping), mapping.counted(counts), "instructions")
    answer(options, callgrind_file.data(counts), lambda: hw_tables.show_counts(counts, options.top))
    return ran.code


def _imported(options: argparse.Namespace) -> int:
    if not options.mapping:
        raise UsageError("--import needs --mapping FILE, written before by 'headrace trace hw --mapping FILE -- ...'")
    export = vendor.read(Path(options.vendor))
    parts = vendor.split(export, mapping.read(Path(options.mapping)))
    facts = {"tool": export.tool, "covered": parts.covered, "operations": parts.operations}
    answer(options, facts, lambda: hw_tables.show_split(export, parts))
    return 0
