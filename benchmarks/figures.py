"""``python -m benchmarks.figures [--check]``: the tables in docs/figures.md and README.md, and a picture, from results.

Every row names the experiment, the tables, the column and the arms it is taken from. Where an experiment was run in
full, its short runs are not looked at; a row whose experiment was never run is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.report import RESULTS, UNFINISHED, cell

PAGE = Path(__file__).parents[1] / "docs" / "figures.md"
README = Path(__file__).parents[1] / "README.md"
PICTURE = PAGE.parent / "pictures" / "result.svg"
HEADLINES = {
    "CPU per sample of 12 KB, seeds per worker": "CPU time per sample of 12 KB, seeded as torch does",
    "JPEG folder, uneven sizes, against torch's best": "a folder of JPEG files: images per second, over torch's best",
    "volumes, three times the memory of a cgroup, two workers (torch: two and four), over torch with two": (
        "volumes three times as large as the memory: samples per second, over torch with two workers"
    ),
    "H200, speech workloads, CPUs at 80 % of the step: GPU busy": "speech of uneven length on an H200: GPU busy",
    "H200, JPEG files to ResNet-50, decoded on the device by two workers, first epoch: of the GPU's own rate": (
        "JPEG files to ResNet-50 on an H200, decoded there by two workers (torch: 14): of the GPU's own rate"
    ),
    "2, 4 and 12 jobs that share a cache, pictures: makespan over torch's": (
        "2, 4 and 12 jobs on the same pictures, sharing a cache: time until all are done, over torch's"
    ),
    "rows of 100 kB from Cassandra, 150 ms away: of the throughput at 0 ms": (
        "a Cassandra cluster 150 ms away: throughput, of that at 0 ms"
    ),
    "the same in S3, 100 KB, 150 ms, first epoch, MB/s (in place of torch: MosaicML Streaming)": (
        "shards in S3, 150 ms away, first epoch, MB/s (in place of torch: MosaicML Streaming)"
    ),
}
"""What the README has too, gains and losses, in the words of somebody who has not read the benchmarks."""
BEGIN = "<!-- figures: written by `make figures` from benchmarks/results, not by hand -->"
END = "<!-- figures: end -->"

Arms = Callable[[str], bool]


def ours(*words: str, without: str = "auto") -> Arms:
    """Arms of this project that have all these words."""
    return lambda arm: arm.startswith("headrace") and without not in arm and all(word in arm for word in words)


def arms(*names: str) -> Arms:
    """Arms by name."""
    return lambda arm: arm in names


def at(where: str, whose: str) -> Arms:
    """Arms of a loader at a place that stands before its name."""
    return lambda arm: arm.startswith(f"{where}, {whose}")


def nobody(arm: str) -> bool:
    """No arm: torch has nothing to compare with."""
    return not arm


@dataclass(frozen=True)
class Target:
    """What our figures are held against."""

    bound: float
    at_most: bool = False
    text: str = ""

    def line(self, figures: list[float]) -> str:
        """The target, and whether it was missed by all or by some of the figures."""
        missed = [figure > self.bound if self.at_most else figure < self.bound for figure in figures]
        said = self.text or f"{'≤' if self.at_most else '≥'} {cell(self.bound).removesuffix('.00')}"
        return said + (" (missed)" if all(missed) else " (partly missed)" if any(missed) else "")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    experiment: str
    tables: tuple[str, ...]
    """How the titles of the tables begin."""
    column: str
    ours: Arms
    torch: Arms = nobody
    unit: str = ""
    target: Target | None = None
    against_torch: bool = False
    """The target is to be no worse than torch's best, in whatever direction ``target`` has."""
    times: float = 1.0
    """Than so many times that."""

    def headline(self, results: Results) -> str | None:
        """As Markdown for the README, a loss called one; None when there are no results."""
        theirs, mine = self.found(results)
        if not mine:
            return None
        fewer = self.target is not None and self.target.at_most
        lost = bool(theirs) and (max(mine) > min(theirs) if fewer else min(mine) < max(theirs))
        return f"| {HEADLINES[self.what]} | {self._spread(theirs)} | {self._spread(mine)}{' (lost)' if lost else ''} |"

    def line(self, results: Results) -> str | None:
        """As Markdown; None when there are no results."""
        theirs, mine = self.found(results)
        if not mine:
            return None
        target = self.target
        if target is not None and self.against_torch:
            best = min(theirs) if target.at_most else max(theirs)
            whose = "torch" if self.times == 1 else f"{self.times:g}× that"
            target = Target(self.times * best, target.at_most, f"{'≤' if target.at_most else '≥'} {whose}")
        said = target.line(mine) if target else ""
        run = results.run(self.experiment, self.tables, self.column)
        return f"| {self.what} | {self._spread(theirs)} | {self._spread(mine)} | {said} | {run} |"

    def found(self, results: Results) -> tuple[list[float], list[float]]:
        """What torch's arms and ours came to."""
        found = results.cells(self.experiment, self.tables, self.column)
        return [value for arm, value in found if self.torch(arm)], [value for arm, value in found if self.ours(arm)]

    def _spread(self, values: list[float]) -> str:
        """The smallest and the largest, once where they look alike."""
        if not values:
            return "–"
        ends = list(dict.fromkeys(cell(value) for value in (min(values), max(values))))
        space = "" if self.unit in ("×", "") else " "
        return " to ".join(ends) + space + self.unit


class Results:
    """What was measured last."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._full: set[str] = set()
        for path in sorted(folder.glob("*.json")):
            self._add(path, full=True)
        for path in sorted((folder / "quick").glob("*.json")):
            self._add(path, full=False)

    def _add(self, path: Path, *, full: bool) -> None:
        name = path.name.split(".")[0]
        if UNFINISHED in path.name or (not full and name in self._full):
            return
        if full:
            self._full.add(name)
        self._reports.setdefault(name, []).append(json.loads(path.read_text()))

    def is_full(self, experiment: str) -> bool:
        """Whether the figures are those of a full run."""
        return experiment in self._full

    def cells(self, experiment: str, titles: Iterable[str], column: str) -> list[tuple[str, float]]:
        """(arm, figure) of every row of the tables whose titles begin so."""
        found = []
        for table, _ in self._tables(experiment, titles, column):
            at = table["columns"].index(column)
            found += [(row[0], float(row[at])) for row in table["rows"] if row[at] not in ("-", "")]
        return found

    def run(self, experiment: str, titles: Iterable[str], column: str) -> str:
        """Whether the figures are those of a full run, and of which commits."""
        commits = dict.fromkeys(commit for _, commit in self._tables(experiment, titles, column) if commit)
        return ", ".join(["full" if self.is_full(experiment) else "short", *commits])

    def _tables(self, experiment: str, titles: Iterable[str], column: str) -> list[tuple[dict[str, Any], str | None]]:
        """Tables with the commit each is of. A case that was measured twice, in different parts, counts as of last."""
        found: dict[str, tuple[dict[str, Any], str | None]] = {}
        for report in sorted(self._reports.get(experiment, []), key=_date):
            for table in report["tables"]:
                if table["title"].startswith(tuple(titles)) and column in table["columns"]:
                    found[table["title"]] = table, report.get("machine", {}).get("commit")
        return list(found.values())


def _date(report: dict[str, Any]) -> str:
    """When it was measured; results of before there were dates are the oldest."""
    return str(report.get("machine", {}).get("date") or "")


TORCH, FREE = "torch, 14 workers", "torch, in_order=False, 14 workers"
GPU, BUSY = ours("14 workers"), Target(95)
# fmt: off
ROWS = (
    *(
        Row(f"CPU per sample of {size}, seeds per {whose}",
            "overhead", (f"CPU per sample: {size},",), "CPU µs", ours(f"{whose} seeds"),
            arms("torch, file_descriptor") if whose == "worker" else nobody, "µs", Target(bound, at_most=True))
        for whose, bounds in (
            ("worker", {"12 KB": 8, "12 KB with a label": 8, "150 KB": 30}),
            ("sample", {"12 KB": 16, "12 KB with a label": 16, "150 KB": 38}),
        )
        for size, bound in bounds.items()
    ),
    *(
        Row(f"JPEG folder, {sizes} sizes, against torch's best",
            "images", (f"Images per second: {sizes}",), "against best torch", ours(), arms("torch"), "×", Target(1))
        for sizes in ("even", "uneven")
    ),
    Row("the same with automatic workers",
        "images", ("Images per second",), "against best torch", ours("auto workers", without="1 workers"),
        arms("torch"), "×", Target(1)),
    Row("volumes, three times the memory of a cgroup, two workers (torch: two and four), over torch with two",
        "pressure", ("512 MiB allowed",), "against torch", ours(), lambda arm: arm.startswith("torch"), "×",
        Target(1), against_torch=True),
    Row("first batch, new workers",
        "startup", ("Milliseconds: fork, new workers",), "first batch", ours(), arms("torch"), "ms",
        Target(0, at_most=True), against_torch=True),
    Row("restart of an epoch, persistent workers",
        "startup", ("Milliseconds: fork, persistent workers",), "restart", ours(), arms("torch"), "ms",
        Target(0, at_most=True), against_torch=True),
    Row("memory over 200,000 samples, last quarter over first",
        "memory", ("Memory of the process tree",), "last / first quarter", ours(), arms("torch"),
        target=Target(1.02, at_most=True)),
    Row("H200, 38.5 MB batch to the device",
        "gpu", ("Batches of 38.5 MB",), "ms per batch", GPU, arms(TORCH, FREE), "ms"),
    Row("H200, ready samples: GPU idle while training",
        "gpu", ("Training, ready samples",), "GPU idle %", GPU, arms(TORCH, FREE), "%", Target(5, at_most=True)),
    Row("H200, speech workloads, CPUs at 80 % of the step: GPU busy",
        "busy", ("speech 3 s, random, CPUs at 80 %", "speech 10 s, random, CPUs at 80 %"), "busy %", GPU,
        arms(TORCH, FREE), "%", BUSY),
    *(
        Row(f"the same, 0.3 % stragglers of 100×, {order}",
            "busy", ("0.3 % stragglers, CPUs at 80 %",), "busy %", ours(order), arms(TORCH, FREE), "%", BUSY)
        for order in ("completion order", "sampler order")
    ),
    Row("the same, volumes, a step of 2 ms: GPU busy, of what the CPUs sustain",
        "busy", ("image segmentation, CPUs at 80 %",), "busy / sustainable", GPU, arms(TORCH, FREE),
        target=Target(0.95)),
    Row("H200, JPEG files to ResNet-50, from the second epoch on: of the GPU's own rate",
        "resnet", ("",), "of the GPU's own %", lambda arm: arm.endswith(", cache"),
        lambda arm: arm.startswith("torch"), "%", Target(90)),
    Row("2, 4 and 12 jobs that share a cache, pictures: makespan over torch's",
        "makespan", ("2 jobs:", "4 jobs:", "12 jobs"), "of torch's", arms("headrace, cache"), arms("torch"), "×",
        Target(0.55, at_most=True)),
    Row("the same, 2 jobs, room for half of the decoded samples",
        "makespan", ("2 jobs, room for half",), "of torch's", arms("headrace, cache"), arms("torch"), "×",
        Target(0.55, at_most=True)),
    Row("the same behind a slow storage (torch: with a page cache of that size)",
        "makespan", ("2 jobs, slow storage",), "of torch's", arms("headrace, cache"), arms("torch, page cache"), "×",
        Target(0, at_most=True), against_torch=True),
    *(
        Row(f"{what} a sample of {size} in a shared cache: CPU",
            "keeping", ("µs of CPU time",), column, arms(size), unit="µs", target=Target(bound, at_most=True))
        for what, column, bounds in (("keeping", "keeping", (60, 120, 400)), ("finding", "having", (20, 50, 130)))
        for size, bound in zip(("12 KB", "150 KB", "768 KB"), bounds, strict=True)
    ),
    *(
        Row(f"first epoch with a cache, samples of {size} and 2 ms: of the rate without one",
            "keeping", ("Samples/s of a first epoch",), "of that", lambda arm, size=size: arm.startswith(f"{size},"),
            target=Target(0.97))
        for size in ("12 KB", "150 KB", "768 KB")
    ),
    *(
        Row(f"rows of 100 kB from Cassandra, {distance} away: of the throughput at 0 ms",
            "network", ("Reading, no window",), "of 0 ms %", at(distance, "headrace"), at(distance, "torch"), "%",
            Target(bound))
        for distance, bound in {"20 ms": 95, "150 ms": 90}.items()
    ),
    Row("the same, 150 ms, later epochs, MB/s",
        "network", ("Reading, no window",), "later MB/s", at("150 ms", "headrace"), at("150 ms", "torch"),
        target=Target(1), against_torch=True),
    *(
        Row(f"{'shards' if first else 'the same'} in S3, {what}, first epoch, MB/s (in place of torch: {whose})",
            "streaming", (f"{what}:",), "MB/s", arms("headrace"), arms(whose), target=Target(1), against_torch=True,
            times=times)
        for what, whose, times, first in (
            ("100 KB, 150 ms", "WebDataset", 1.3, True),
            ("100 KB, 150 ms", "MosaicML Streaming", 2.4, False),
            ("100 KB, 20 ms", "WebDataset", 1.3, False),
            ("100 KB, 20 ms", "MosaicML Streaming", 2.4, False),
            ("10 KB, 150 ms", "WebDataset", 1.3, False),
            ("10 KB, 150 ms", "MosaicML Streaming", 1.3, False),
            ("10 KB, 20 ms", "WebDataset", 1.3, False),
            ("10 KB, 20 ms", "MosaicML Streaming", 1.3, False),
            ("100 KB, 150 ms, new connections", "WebDataset", 1, False),
            ("100 KB, 150 ms, every tenth sample", "MosaicML Streaming", 5, False),
        )
    ),
    *(
        Row(f"the same, 100 KB, 150 ms: {what} (in place of torch: {whose})", "streaming", ("100 KB, 150 ms:",), column,
            arms("headrace"), arms(whose), unit, Target(bound, at_most=True))
        for what, column, unit, bound in (
            ("first batch", "first batch s", "s", 0.8), ("CPU of all processes", "CPU s/GB", "s/GB", 1.5)
        )
        for whose in ("WebDataset", "MosaicML Streaming")
    ),
    Row("the same, 100 KB, 150 ms: bytes sent for each read", "streaming", ("100 KB, 150 ms:",), "MB sent / MB read",
        arms("headrace"), target=Target(1.02, at_most=True)),
    Row("the same, every tenth sample of 256 KB: bytes sent for each read", "streaming", ("256 KB, 150 ms, every",),
        "MB sent / MB read", arms("headrace"), target=Target(1.1, at_most=True)),
    Row("the same, three jobs that begin together and share a cache: bytes sent for each that one of them read",
        "streaming", ("100 KB, 20 ms, one cache",), "MB sent / MB read", arms("headrace, three jobs"),
        target=Target(1.2, at_most=True)),
    Row("the same, one request in a hundred 2 s late, sampler order: longest wait of 99 % of the batches",
        "streaming", ("100 KB, 150 ms, late answers",), "wait P99 ms", arms("headrace, sampler order"), unit="ms",
        target=Target(5, at_most=True)),
    Row("H200, JPEG files to ResNet-50, decoded on the device by two workers, first epoch: of the GPU's own rate",
        "on_device", ("38400 samples",), "first, of the GPU's own %", arms("resnet50: headrace, on_device, 2 workers"),
        arms("resnet50: torch, PIL, 14 workers"), unit="%", target=Target(96)),
    Row("the same, second epoch after its beginning",
        "on_device", ("38400 samples",), "second, after a fifth", arms("resnet50: headrace, on_device, 2 workers"),
        arms("resnet50: torch, PIL, 14 workers"), unit="%", target=Target(96)),
    Row("the same: CPU per image beyond the step's",
        "on_device", ("38400 samples",), "CPU ms / image beyond the step's",
        arms("resnet50: headrace, on_device, 2 workers"), arms("resnet50: torch, PIL, 14 workers"), unit="ms",
        target=Target(0.2, at_most=True)),
    Row("tracing, four-operation image pipeline: CPU",
        "profilers", ("An image pipeline, watched",), "CPU +%", arms("headrace + trace="), unit="%",
        target=Target(1, at_most=True)),
    Row("the same: bytes per event",
        "profilers", ("An image pipeline, watched",), "bytes / event", arms("headrace + trace="),
        target=Target(32, at_most=True)),
    Row("the same: CPU per event",
        "profilers", ("CPU per event",), "ns / event", arms("4 operations"), unit="ns",
        target=Target(1000, at_most=True)),
    Row("the same, a dataset without operations",
        "profilers", ("CPU per event",), "ns / event", arms("opaque dataset"), unit="ns",
        target=Target(1000, at_most=True)),
    Row("samples of known C functions attributed to the right operation",
        "attribution", ("short operations", "long operations"), "right %", bool, unit="%", target=Target(99)),
)
# fmt: on


def table(results: Results) -> str:
    """Everything as Markdown, with what it is held against, and what it is a result of."""
    lines = ["| what | torch | headrace | target | run |", "|---|---:|---:|---:|---|"]
    return "\n".join([*lines, *(line for row in ROWS if (line := row.line(results)) is not None)])


def headlines(results: Results) -> str:
    """What a newcomer asks about, as Markdown."""
    lines = ["| | torch | headrace |", "|---|---:|---:|"]
    rows = (row for row in ROWS if row.what in HEADLINES)
    return "\n".join([*lines, *(line for row in rows if (line := row.headline(results)) is not None)])


def bars(results: Results) -> str:
    """Headlines in percent as a picture: torch's best beside our worst, what was missed included."""
    shown = [(row, *row.found(results)) for row in ROWS if row.what in HEADLINES and row.unit == "%"]
    shown = [(row, max(theirs), min(mine)) for row, theirs, mine in shown if theirs and mine]
    height = 30 + 58 * len(shown)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="760" height="{height}" fill="#fff"/>',
    ]
    for number, (row, theirs, mine) in enumerate(shown):
        top = 20 + 58 * number
        lines.append(f'<text x="10" y="{top}">{escape(HEADLINES[row.what])}</text>')
        for name, value, colour, y in (("torch", theirs, "#b8bfc6", top + 6), ("headrace", mine, "#2b7a9b", top + 24)):
            width = round(5.2 * min(value, 120))
            lines.append(f'<rect x="80" y="{y}" width="{width}" height="14" fill="{colour}"/>')
            lines.append(f'<text x="10" y="{y + 12}" fill="#555">{name}</text>')
            lines.append(f'<text x="{86 + width}" y="{y + 12}">{cell(value)} %</text>')
    return "\n".join([*lines, "</svg>", ""])


def placed(text: str, made: str) -> str:
    """The page with the table between its marks. Raises ValueError where there are none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"the page has no place for the table: it needs the lines {BEGIN} and {END}"
        raise ValueError(msg)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> int:
    """Write the tables, or say whether they are up to date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when a table is another")
    check = parser.parse_args().check
    results, stale = Results(), False
    for page, made in ((PAGE, table), (README, headlines)):
        before = page.read_text()
        after = placed(before, made(results))
        stale |= before != after
        if not check:
            page.write_text(after)
    stale |= not PICTURE.exists() or PICTURE.read_text() != bars(results)
    if not check:
        PICTURE.write_text(bars(results))
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
