"""Tables of ``headrace trace hw`` and ``headrace trace study``."""

import re

from rich.table import Table
from rich.text import Text

from headrace.cli.screen import screen, table
from headrace.trace.hardware.callgrind_file import InstructionCounts, OperationCounts
from headrace.trace.hardware.names import readable
from headrace.trace.hardware.profile import OperationProfile, Profile, ratios
from headrace.trace.hardware.study import Study
from headrace.trace.hardware.vendor import Export, VendorSplit


def named(text: str) -> Text:
    """A name in one piece, cut where there is no room."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def number(value: float | None) -> str:
    """The value in three digits and a unit."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def library(name: str) -> str:
    """A library's name without the interpreter it was built for."""
    return re.sub(r"\.cpython-[^.]*", "", name)


def show_profile(found: Profile, top: int) -> None:
    """Operations, then the functions of each."""
    out = screen()
    derived = list(dict.fromkeys(name for one in found.operations for name in ratios(one.counters)))
    made = table(
        f"{found.samples} samples of {found.primary}",
        "operation",
        "calls",
        "CPU s",
        "samples",
        "python",
        "native",
        "kernel",
        *derived,
    )
    for one in found.operations:
        values = ratios(one.counters)
        made.add_row(
            one.name,
            str(one.calls or ""),
            f"{one.seconds:.3f}",
            str(one.samples),
            *(f"{one.parts[part]:.1%}" for part in ("python", "native", "kernel")),
            *(number(values.get(name)) for name in derived),
            style="" if one.operates else "dim",
        )
    out.print(made)
    counted = [event for event in found.events if event != "cpu-clock"]
    made = table(
        "Functions of each operation",
        "operation",
        "function",
        "library",
        "share",
        "95 %",
        "samples",
        "its own",
        *counted,
        left=3,
    )
    for one in found.operations:
        if one.operates:
            _functions(made, one, top, counted)
    out.print(made)
    for line in notes(found):
        out.print(line, style="dim")


def _functions(made: Table, one: OperationProfile, top: int, counted: list[str]) -> None:
    shown = [entry for entry in one.entries if entry.samples][:top]
    for at, entry in enumerate(shown):
        made.add_row(
            named(one.name) if at == 0 else "",
            named(readable(entry.function.name)),
            named(library(entry.function.library)),
            f"{entry.share.value:.1%}",
            f"{entry.share.low:.1%}–{entry.share.high:.1%}",
            str(entry.samples),
            f"{entry.belongs.value:.0%}",
            *(number(entry.counters.get(event)) for event in counted),
            end_section=at == len(shown) - 1,
        )


def notes(found: Profile) -> list[str]:
    """Limits of the figures."""
    lines = ["its own: of all samples in the function, those in this operation."]
    if found.primary != "cycles":
        lines.append(
            "This machine has no hardware counters: samples are of the clock, and there are no cycles or misses."
        )
    if not found.kernel:
        lines.append("Kernel code was not sampled: 'sysctl kernel.perf_event_paranoid=1' allows it.")
    if found.lost:
        lines.append(f"{found.lost} samples were lost: the machine was too busy; a lower --frequency helps.")
    if found.unmapped:
        lines.append(f"{found.unmapped} samples were in code of no known library.")
    return lines


COSTS = {
    "instructions": ("Ir",),
    "L1 misses": ("D1mr", "D1mw"),
    "LL misses": ("DLmr", "DLmw"),
    "mispredicted": ("Bcm", "Bim"),
}


def show_counts(counts: InstructionCounts, top: int) -> None:
    """Exact counts, operation by operation, per call."""
    out = screen()
    made = table("Counted under callgrind, per call", "operation", "function", "library", "share", *COSTS, left=3)
    for name, counted in counts.operations.items():
        total = summed(counts, counted)
        made.add_row(
            name,
            named(f"all of it, {counted.calls} calls"),
            "",
            "",
            *_per_call(counts, counted, total),
            style="bold",
        )
        ranked = sorted(counted.functions.items(), key=lambda item: -item[1][0])[:top]
        for at, (function, costs) in enumerate(ranked):
            made.add_row(
                "",
                named(readable(function.name)),
                named(library(function.library)),
                f"{costs[0] / max(total[0], 1):.1%}",
                *_per_call(counts, counted, costs),
                end_section=at == len(ranked) - 1,
            )
    out.print(made)
    out.print(
        "Caches and branches are a model (32 MiB last level, cold at the start of each call); valgrind hides AVX-512.",
        style="dim",
    )


def summed(counts: InstructionCounts, counted: OperationCounts) -> list[int]:
    """An operation's costs, all functions together."""
    return [
        sum(costs[at] for costs in counted.functions.values() if at < len(costs)) for at in range(len(counts.events))
    ]


def _per_call(counts: InstructionCounts, counted: OperationCounts, costs: list[int]) -> list[str]:
    at = {event: position for position, event in enumerate(counts.events)}
    cells = []
    for events in COSTS.values():
        positions = [at[event] for event in events if event in at]
        cells.append(number(sum(costs[position] for position in positions if position < len(costs)) / counted.calls))
    return cells


def show_split(export: Export, parts: VendorSplit) -> None:
    """A vendor's counters by operation."""
    out = screen()
    columns = parts.columns[:10]
    made = table(f"{export.tool}: counters by operation", "operation", *columns)
    for name, values in parts.operations.items():
        made.add_row(name, *(_cell(export, column, values.get(column)) for column in columns))
    out.print(made)
    out.print(
        f"{parts.covered:.1%} of {columns[0]} is in functions of the mapping. Functions shared by operations are split "
        "by their measured samples in each, not by elapsed time.",
        style="dim",
    )


def _cell(export: Export, column: str, value: float | None) -> str:
    if value is not None and column in export.percents:
        return f"{value:.1%}"
    return number(value)


def show_study(found: Study) -> None:
    """Print a row per worker count and operation."""
    out = screen()
    made = table("By number of workers", "workers", "elapsed s", "loading s", "CPU s", "samples/s")
    for one in found.runs:
        made.add_row(str(one.workers), f"{one.seconds:.2f}", f"{one.loading:.2f}", f"{one.cpu:.2f}", number(one.rate))
    out.print(made)
    derived = found.measures
    for heading, values in [("CPU s", found.cpu), *((name, found.measure(name)) for name in derived)]:
        made = table(f"{heading}, by number of workers", "operation", *(str(one.workers) for one in found.runs))
        for name, row in values.items():
            made.add_row(name, *(number(value) for value in row))
        out.print(made)
    for line in found.notes:
        out.print(line, style="dim")
