"""Tables for people, Markdown and JSON for files: what an experiment hands back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks import machine

RESULTS = Path(__file__).parent / "results"
UNFINISHED = "unfinished"


Figure = str | Callable[[Any], object]
"""What fills a column: the median of a figure, by its name, or what is made of an arm's runs."""


@dataclass
class Table:
    """One table of finished cells; the first column names the arm."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)

    @classmethod
    def of(cls, title: str, first: str, columns: Sequence[tuple[str, Figure]], results: Mapping[str, Any]) -> Table:
        """A row for each arm, by its runs (`measure.Runs`); ``first`` stands over their names."""
        made = cls(title, [first, *(name for name, _ in columns)])
        for arm, runs in results.items():
            made.add(arm, *(runs.median(figure) if isinstance(figure, str) else figure(runs) for _, figure in columns))
        return made

    def add(self, *cells: object) -> None:
        """Append one row; floats are shown with three significant digits, NaN as a dash."""
        self.rows.append([cell(value) for value in cells])


@dataclass
class Check:
    """A figure against its target; a missed target is printed like a met one."""

    what: str
    figure: float
    bound: float
    at_most: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its bound; NaN never is."""
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound

    def line(self) -> str:
        """The check in words."""
        sign = "<=" if self.at_most else ">="
        mark = "met" if self.met else "MISSED"
        return f"{mark}: {self.what}: {cell(self.figure)} {sign} {cell(self.bound)} {self.unit}"


@dataclass
class Report:
    """Everything one experiment found."""

    name: str
    about: str
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine.describe)
    quick: bool = False
    part: str = ""
    """Names the cases where not all were run: part of the files' names, so that a part never replaces the whole."""

    def add(self, title: str, table: Table, results: Mapping[str, Any]) -> None:
        """A case: its table, what was measured of each arm (`measure.Runs`), and why runs of an arm failed."""
        self.tables.append(table)
        self.raw[title] = {arm: vars(runs) for arm, runs in results.items()}
        self.notes += [f"{title}: {arm}: {failure}" for arm, runs in results.items() for failure in runs.failures]

    def data(self) -> dict[str, Any]:
        """The report as plain values; NaN becomes null."""
        plain = asdict(self)
        plain["checks"] = [{**asdict(check), "met": check.met} for check in self.checks]
        finite: dict[str, Any] = _finite(plain)
        return finite

    def show(self, console: Console) -> None:
        """Print the report."""
        for table in self.tables:
            grid = RichTable(title=escape(table.title), title_justify="left", box=rich.box.SIMPLE_HEAD)
            for position, column in enumerate(table.columns):
                grid.add_column(escape(column), justify="left" if position == 0 else "right")
            for row in table.rows:
                grid.add_row(*(escape(value) for value in row))
            console.print(grid)
        for check in self.checks:
            console.print(escape(check.line()), style="green" if check.met else "red")
        for note in self.notes:
            console.print(escape(f"note: {note}"), style="dim")

    def markdown(self) -> str:
        """The report as a Markdown page."""
        lines = [f"# {self.name}", "", self.about, "", machine.line(self.machine), ""]
        if self.quick:
            lines += ["Quick run: few repeats, short epochs; not a figure to quote.", ""]
        for table in self.tables:
            lines += [f"**{table.title}**", "", _row(table.columns)]
            lines.append(_row(["---", *["---:"] * (len(table.columns) - 1)]))
            lines += [*(_row(row) for row in table.rows), ""]
        lines += [f"- {check.line()}" for check in self.checks]
        lines += ["", *(f"Note: {note}\n" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def write(self, *, unfinished: bool = False) -> Path:
        """Write JSON and Markdown below ``benchmarks/results``, quick runs in ``quick``; what is whole replaces parts.

        ``unfinished``: not all cases are there, so the files are not those of the whole.
        """
        folder = RESULTS / "quick" if self.quick else RESULTS
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self.name}.{self.part}" if self.part else self.name
        partial = f"{stem}.{UNFINISHED}"
        if unfinished:
            stem = partial
        else:
            for kind in ("json", "md"):
                (folder / f"{partial}.{kind}").unlink(missing_ok=True)
        (folder / f"{stem}.json").write_text(json.dumps(self.data(), indent=1) + "\n")
        path = folder / f"{stem}.md"
        path.write_text(self.markdown())
        return path


def cell(value: object) -> str:
    """One value as table text."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def sparkline(values: Sequence[float]) -> str:
    """Values as a line of block characters, from 0 to their largest."""
    top = max(values, default=0.0)
    blocks = "▁▂▃▄▅▆▇█"
    scale = (len(blocks) - 1) / top if top > 0 else 0.0
    return "".join(blocks[round(max(value, 0.0) * scale)] for value in values)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
