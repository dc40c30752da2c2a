"""Figures of a trace: a report per loader. Pure; seconds everywhere."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.trace import format as F
from headrace.trace.analysis.advice import Advice, advise
from headrace.trace.analysis.batches import delivered, following
from headrace.trace.analysis.figures import Figures, FormFigures, Lane, NodeFigures, RunFigures, Steady
from headrace.trace.analysis.operation_times import operations, slow_samples
from headrace.trace.analysis.select import Loader, loaders, of_runs
from headrace.trace.analysis.spread import SECOND, Spread, computed, ratio, share, spread
from headrace.trace.analysis.verdict import Verdict, judge
from headrace.trace.analysis.without_a_core import without_a_core
from headrace.trace.calibrate import Calibration
from headrace.trace.reader import Table, Trace

TIERS = ("not cached", *F.FORMS)


@dataclass(frozen=True)
class LoaderReport:
    """Figures, what they mean, what to do."""

    figures: Figures
    verdict: Verdict
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class OwnCost:
    """Cost of tracing itself, by a calibration on the machine that made the report."""

    events: int
    nanoseconds_per_event: float
    seconds: float
    """Of all processes together."""
    share: float
    """Of the time that samples took."""
    bytes_on_disk: int
    bytes_per_event: float


@dataclass(frozen=True)
class Report:
    """The full report."""

    path: str
    host: str
    began: float
    """Seconds since 1970."""
    complete: bool
    loaders: tuple[LoaderReport, ...]
    spans: dict[str, Spread]
    """The user's own, by name."""
    cost: OwnCost

    def data(self) -> dict[str, Any]:
        """Plain values for JSON, derived figures included, so that no reader computes them anew."""
        found = asdict(self)
        for plain, loader in zip(found["loaders"], self.loaders, strict=True):
            figures = loader.figures
            plain["figures"] |= {"workers": figures.workers, "busy": figures.busy, "rate": figures.rate}
            plain["figures"]["transfer"] = figures.transfer
        return found


def report(trace: Trace, calibration: Calibration, cores: int | None = None) -> Report:
    """The report of a trace. ``cores``: how many the loader had, where that is known."""
    found = []
    for loader in loaders(trace):
        figures = measure(of_runs(trace, loader.runs), loader, cores)
        found.append(LoaderReport(figures, judge(figures), advise(figures)))
    spent = calibration.cost(trace)
    made = int(trace.samples["elapsed"].sum()) / SECOND
    return Report(
        path=trace.path,
        host=trace.host,
        began=trace.wall / SECOND,
        complete=trace.complete,
        loaders=tuple(found),
        spans={
            trace.names[name]: spread(trace.spans["elapsed"][trace.spans["name"] == name])
            for name in np.unique(trace.spans["name"]).tolist()
        },
        cost=OwnCost(
            events=trace.events,
            nanoseconds_per_event=ratio(spent * SECOND, trace.events),
            seconds=spent,
            share=ratio(spent, made),
            bytes_on_disk=trace.size,
            bytes_per_event=ratio(trace.size, trace.events),
        ),
    )


def measure(trace: Trace, loader: Loader, cores: int | None = None) -> Figures:
    """The figures of one loader; ``trace`` has its runs only."""
    batches = delivered(trace)
    samples = trace.samples
    runs = tuple(_run(trace, batches[batches["run"] == run], run) for run in loader.runs)
    seconds = sum(run.seconds for run in runs)
    firsts = [run.first_wait for run in runs if run.batches]
    slow, slowest = slow_samples(trace)
    made = batches[batches["made"]]
    facts = trace.runs[loader.runs[0]].facts
    marks = {trace.names[name]: int((trace.marks["name"] == name).sum()) for name in set(trace.marks["name"].tolist())}
    return Figures(
        name=loader.name,
        process=loader.process,
        facts=facts,
        cores=facts.get("cores", cores),
        runs=runs,
        seconds=seconds,
        batches=len(batches),
        samples=len(samples),
        startup=firsts[0] if firsts else 0.0,
        **_startup(trace, batches),
        epoch_starts=sum(firsts[1:]),
        steady=_steady(batches),
        work=spread(made["work"]),
        span=spread(made["ready"] - made["begun"]),
        out_of_order=share(batches["early"]),
        lanes=_lanes(trace, seconds),
        cpu=computed(samples),
        queued=without_a_core(trace),
        operations=operations(trace),
        slow=slow,
        slowest=slowest,
        cache=_cache(samples),
        elsewhere=_elsewhere(trace),
        bytes_in=int(samples["bytes_in"].sum()),
        bytes_out=int(samples["bytes_out"].sum()),
        copies=spread(trace.copies["elapsed"]),
        copied_bytes=int(trace.copies["bytes"].sum()),
        retries=int(samples["retries"].sum()),
        failures=int(samples["failed"].sum()),
        deaths=marks.get("death", 0),
        hand_offs=marks.get("hand-off", 0),
        repeats=marks.get("repeat", 0),
        divisions=_divisions(trace),
    )


def _divisions(trace: Trace) -> tuple[str, ...]:
    """Statements of the cache's planner, without those repeated in the next run."""
    said = [trace.names[name] for name in trace.marks["name"][np.argsort(trace.marks["time"])].tolist()]
    told = [text.removeprefix(F.DIVIDED) for text in said if text.startswith(F.DIVIDED)]
    return tuple(text for at, text in enumerate(told) if not at or told[at - 1] != text)


def _run(trace: Trace, batches: Table, run: int) -> RunFigures:
    samples = trace.samples[trace.samples["run"] == run]
    begins = [int(column.min()) for column in (batches["asked"], samples["start"]) if len(column)]
    ends = [int(column.max()) for column in (batches["got"], samples["start"] + samples["elapsed"]) if len(column)]
    seconds = (max(ends) - min(begins)) / SECOND if begins else 0.0
    made = batches[batches["made"]]
    return RunFigures(
        number=run,
        epoch=trace.runs[run].epoch,
        seconds=seconds,
        batches=len(batches),
        samples=int(batches["samples"].sum()),
        rate=ratio(batches["samples"].sum(), seconds),
        first_wait=int(batches["wait"][0]) / SECOND if len(batches) else 0.0,
        wait=spread(batches["wait"][1:]),
        delay=spread(made["delay"]),
        work=spread(made["work"]),
    )


def _startup(trace: Trace, batches: Table) -> dict[str, float]:
    """Parts of the wait for the first batch.

    They are the time before the first sample, the time before the first row of a store where one was brought, and by
    how much a worker's first sample took longer than samples do.
    """
    # A program that never asked a store has no such name, and no span has the number -1.
    samples, brought = trace.samples, trace.spans[trace.spans["name"] == trace.number(F.NETWORK)]
    if not len(batches) or not len(samples):
        return {"startup_idle": 0.0, "startup_store": 0.0, "startup_first": 0.0}
    asked, got = int(batches["asked"][0]), int(batches["got"][0])
    early = samples[samples["start"] < got]
    _, firsts = np.unique(early["stream"], return_index=True)
    lengths = {
        "startup_idle": int(samples["start"].min()) - asked,
        "startup_store": int((brought["start"] + brought["elapsed"]).min()) - asked if len(brought) else 0,
        "startup_first": max(early["elapsed"][firsts].tolist(), default=0) - float(np.median(samples["elapsed"])),
    }
    return {name: min(max(0, length), got - asked) / SECOND for name, length in lengths.items()}


def _steady(batches: Table) -> Steady:
    """All but the first batch of each epoch, and the time from that one to the last."""
    before, after = following(batches)
    nanoseconds = int((after["got"] - before["got"]).sum())
    made = after[after["made"]]
    step = after["asked"] - before["got"]
    # A wait that hardly lengthens a step is not worth the name, nor is one that is no longer than a switch of context.
    counts = np.maximum(1_000_000, 0.05 * float(np.median(after["got"] - before["got"])) if len(after) else 0.0)
    return Steady(
        batches=len(after),
        samples=int(after["samples"].sum()),
        seconds=nanoseconds / SECOND,
        rate=ratio(after["samples"].sum() * SECOND, nanoseconds),
        step=spread(step),
        wait=spread(after["wait"]),
        wait_share=ratio(after["wait"].sum(), nanoseconds),
        waited_for=share(after["wait"] > counts),
        lay_ready=share(made["delay"] > counts),
        wait_over_1ms=share(after["wait"] > 1_000_000),
        wait_over_500ms=share(after["wait"] > 500_000_000),
        delay=spread(made["delay"]),
        delay_over_1ms=share(made["delay"] > 1_000_000),
        delay_over_500ms=share(made["delay"] > 500_000_000),
        blocked_share=ratio(after["blocked"].sum(), nanoseconds),
    )


def _lanes(trace: Trace, seconds: float) -> tuple[Lane, ...]:
    lanes = np.array([stream.lane for stream in trace.streams])
    tables = [(table, lanes[table["stream"]]) for table in (trace.samples, trace.rows, trace.collations)]
    found = []
    for lane in np.unique(np.concatenate([of for _, of in tables])).tolist():
        samples, rows, collations = (table[of == lane] for table, of in tables)
        spent = sum(int(spans["elapsed"].sum()) for spans in (samples, rows, collations))
        found.append(Lane(lane, ratio(spent / SECOND, seconds), len(samples), computed(samples)))
    return tuple(found)


def _elsewhere(trace: Trace) -> tuple[NodeFigures, ...]:
    """Samples made on other hosts, node by node."""
    samples, spans, found = trace.samples, trace.spans, []
    for name in np.unique(samples["node"][samples["node"] >= 0]).tolist():
        count = int((samples["node"] == name).sum())
        node, time = trace.names[name].removeprefix(F.ELSEWHERE), spread(spans["elapsed"][spans["name"] == name])
        found.append(NodeFigures(node, count, ratio(count, len(samples)), time))
    return tuple(found)


def _cache(samples: Table) -> tuple[FormFigures, ...]:
    """Hits of each form; empty without a cache."""
    if not samples["tier"].any():
        return ()
    return tuple(
        FormFigures(TIERS[tier], len(mine), ratio(len(mine), len(samples)), spread(mine["elapsed"]))
        for tier in range(len(TIERS))
        if len(mine := samples[samples["tier"] == tier])
    )
