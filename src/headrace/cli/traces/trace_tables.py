"""A report as tables for people."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.screen import table
from headrace.trace.analysis.advice import Advice
from headrace.trace.analysis.figures import Figures
from headrace.trace.analysis.number_format import seconds, size
from headrace.trace.analysis.spread import Spread, ratio
from headrace.trace.report import LoaderReport, Report

KEY = 28
"""Letters of a key that are shown."""


def show(report: Report, out: Console) -> None:
    """Print all of it."""
    began = datetime.fromtimestamp(report.began).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    out.print(f"{report.path}: recorded on {report.host}, {began}")
    if not report.complete:
        out.print("The disk was full: the trace ends before the run did.", style="yellow")
    if not report.loaders:
        out.print("No loader has recorded anything in it.", style="yellow")
    for loader in report.loaders:
        _loader(loader, out)
    if report.spans:
        out.print(_spreads("spans", report.spans))
    cost = report.cost
    out.print(
        f"Tracing itself: {cost.events} events, {cost.nanoseconds_per_event:.0f} ns each on this machine, "
        f"{seconds(cost.seconds)} in all ({cost.share:.2%} of the time of samples); "
        f"{size(cost.bytes_on_disk)} on disk, {cost.bytes_per_event:.0f} bytes an event.",
        style="dim",
    )


def _short(value: float) -> str:
    """The duration, written for a narrow column."""
    return seconds(value).replace(" ", "")


def _loader(found: LoaderReport, out: Console) -> None:
    figures = found.figures
    facts = ", ".join(f"{name} {value}" for name, value in figures.facts.items())
    out.rule(Text(f"{figures.name} (process {figures.process})", style="bold"), align="left")
    out.print(facts, style="dim")
    out.print(found.verdict.meaning, style="bold")
    for line in found.verdict.evidence:
        out.print(f"  {line}")
    advise(found.advice, out)
    out.print(_operations(figures))
    out.print(_batches(figures))
    out.print(_runs(figures))
    if any(lane.lane >= 0 for lane in figures.lanes):
        out.print(_lanes(figures))
    if figures.slowest:
        out.print(_slow(figures))
    if figures.cache:
        made = table("cache", "form", "samples", "share", "mean", "P90")
        for tier in figures.cache:
            cells = (str(tier.samples), f"{tier.share:.1%}", _short(tier.time.mean), _short(tier.time.p90))
            made.add_row(tier.form, *cells)
        out.print(made)
    if figures.elsewhere:
        made = table("made on other hosts", "node", "samples", "share", "asked to here", "P90")
        for node in figures.elsewhere:
            cells = (str(node.samples), f"{node.share:.1%}", _short(node.time.mean), _short(node.time.p90))
            made.add_row(node.node, *cells)
        out.print(made)
    for division in figures.divisions:
        out.print(f"cache divided {division}")
    for line in _counts(figures):
        out.print(line)


def advise(found: Sequence[Advice], out: Console) -> None:
    """Every change, a line each."""
    for advice in found:
        out.print(Text.assemble("  → ", (advice.setting, "bold green"), f"  {advice.text}"))


def _operations(figures: Figures) -> Table:
    made = table("operations", "operation", "count", "mean", "P50", "P90", "P99", "vary", "share", "CPU")
    for row in figures.operations:
        time = row.time
        made.add_row(
            row.name,
            str(time.count),
            *(_short(value) for value in (time.mean, time.p50, time.p90, time.p99)),
            f"{time.variability:.0%}",
            f"{row.share:.1%}",
            "" if row.cpu is None else f"{row.cpu:.0%}",
            style="dim" if row.kind == "loader" else "",
        )
    return made


def _batches(figures: Figures) -> Table:
    made = table("batches", "", "count", "mean", "P50", "P90", "P99", "vary", ">1ms", ">500ms")
    steady = figures.steady
    rows: list[tuple[str, Spread, tuple[str, ...]]] = [
        ("preprocessing (T1)", figures.work, ()),
        ("first sample to ready", figures.span, ()),
        ("wait (T2)", steady.wait, (f"{steady.wait_over_1ms:.1%}", f"{steady.wait_over_500ms:.1%}")),
        ("delay", steady.delay, (f"{steady.delay_over_1ms:.1%}", f"{steady.delay_over_500ms:.1%}")),
        ("trainer's step", steady.step, ()),
    ]
    if figures.copies.count:
        rows.append(("copy to the device", figures.copies, ()))
    for name, time, over in rows:
        values = (_short(value) for value in (time.mean, time.p50, time.p90, time.p99))
        made.add_row(name, str(time.count), *values, f"{time.variability:.0%}", *over)
    return made


def _runs(figures: Figures) -> Table:
    made = table("epochs", "run", "epoch", "batches", "samples", "time", "samples/s", "first wait", "T1 P50", "T1 std")
    for run in figures.runs:
        made.add_row(
            *(str(value) for value in (run.number, run.epoch, run.batches, run.samples)),
            _short(run.seconds),
            f"{run.rate:.1f}",
            _short(run.first_wait),
            _short(run.work.p50),
            _short(run.work.std),
        )
    return made


def _lanes(figures: Figures) -> Table:
    made = table("workers", "worker", "samples", "busy", "CPU")
    for lane in figures.lanes:
        name = str(lane.lane) if lane.lane >= 0 else "main"
        made.add_row(name, str(lane.samples), f"{lane.busy:.0%}", "" if lane.cpu is None else f"{lane.cpu:.0%}")
    cpu = "" if figures.cpu is None else f"{figures.cpu:.0%}"
    made.add_row(f"all, of {figures.workers} places", str(figures.samples), f"{figures.busy:.0%}", cpu, style="bold")
    return made


def _slow(figures: Figures) -> Table:
    share = ratio(figures.slow, figures.samples)
    made = table(
        f"slow samples ({figures.slow}, {share:.1%})", "sample", "times", "longest", "because of", "which took"
    )
    for slow in figures.slowest:
        made.add_row(
            _end(slow.key or slow.index),
            str(slow.times),
            _short(slow.seconds),
            slow.operation,
            _short(slow.operation_seconds),
        )
    return made


def _end(name: str) -> str:
    """The end of a key, as much as fits: paths differ at their end."""
    return name if len(name) <= KEY else "…" + name[1 - KEY :]


def _spreads(title: str, spans: dict[str, Spread]) -> Table:
    made = table(title, "", "count", "mean", "P50", "P90", "P99", "in all")
    for name, time in spans.items():
        values = (time.mean, time.p50, time.p90, time.p99, time.total)
        made.add_row(name, str(time.count), *(_short(value) for value in values))
    return made


def _counts(figures: Figures) -> list[str]:
    """Single figures, those that are zero left out."""
    found = [f"{figures.rate:.1f} samples/s in all, {figures.steady.rate:.1f} after the first batch"]
    if figures.steady.batches:
        found.append(
            f"{figures.out_of_order:.1%} of the batches were ready before the one delivered before them; "
            f"{figures.steady.blocked_share:.1%} of the time was waited while a later batch was ready"
        )
    sizes = {"in": figures.bytes_in, "out": figures.bytes_out, "to the device": figures.copied_bytes}
    found.append(", ".join(f"{size(ratio(each, figures.seconds))}/s {way}" for way, each in sizes.items() if each))
    counts = {
        "retries": figures.retries,
        "failures": figures.failures,
        "deaths": figures.deaths,
        "hand-offs": figures.hand_offs,
        "repeats": figures.repeats,
    }
    found.append(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    return [line for line in found if line]
