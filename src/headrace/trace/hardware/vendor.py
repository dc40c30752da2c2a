"""Profiles of Intel VTune and AMD uProf, split among operations by a mapping.

Read are the CSV files of ``vtune -report hotspots -format csv`` (also of the microarchitecture and event analyses, with
comma, tab or semicolon, and tables copied from the window) and of ``AMDuProfCLI report -f csv``.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import TraceError
from headrace.trace.hardware.mapping import Mapping, Weights

UNMAPPED = "(not in the mapping)"
_NAMES = ("Function", "Source Function / Function / Call Stack", "Function / Call Stack", "FUNCTION")
_TEXT = {"module", "function (full)", "source file", "start address", "module path"}
_BASES = ("Clockticks", "CPU_CLK_UNHALTED.THREAD", "CYCLES_NOT_IN_HALT", "CPU Time", "CPU_TIME")
_INSTRUCTIONS = ("Instructions Retired", "INST_RETIRED.ANY", "RETIRED_INST")
_RATIO = re.compile(
    r"%|(^|[\s_(])(rate|ratio|cpi|ipc|pti)\b|bound|frequency|latency|bandwidth|retiring|speculation", re.IGNORECASE
)
_PER_INSTRUCTION = re.compile(r"(^|[\s_(])(cpi|pti)\b", re.IGNORECASE)
_VALUE = re.compile(r"^(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(s|ms|us|ns|%|GHz|MHz)?$", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "%": 0.01, "ghz": 1e9, "mhz": 1e6}


@dataclass
class VendorRow:
    """Counts of a function."""

    names: list[str]
    library: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Export:
    """A vendor's profile. ``ratios`` are the columns that must not be added up, ``percents`` those written so."""

    tool: str
    columns: list[str]
    ratios: set[str]
    percents: set[str]
    rows: list[VendorRow]


@dataclass(frozen=True)
class VendorSplit:
    """Counts by operation, and how much of the first column the mapping accounts for."""

    columns: list[str]
    operations: dict[str, dict[str, float]]
    covered: float


def read(path: Path) -> Export:
    """The profile in a file. Raises ``TraceError`` when it is none that is known."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise TraceError(f"--import {path}: cannot be read ({error.strerror})") from error
    rows: dict[tuple[str, str, int], VendorRow] = {}
    ratios: set[str] = set()
    percents: set[str] = set()
    for table in _tables(text.splitlines()):
        seen: Counter[tuple[str, str]] = Counter()
        for record in table:
            name, full = next(iter(record.values())).strip(), record.get("Function (Full)", "").strip()
            library = record.get("Module", record.get("MODULE", "")).strip()
            seen[full or name, library] += 1
            # uProf lists a function again in a table per event; two rows in one table are two functions.
            key = full or name, library, seen[full or name, library]
            row = rows.setdefault(key, VendorRow([name, *([full] if full else [])], library))
            for column, cell in list(record.items())[1:]:
                value = _number(cell) if column.strip().lower() not in _TEXT else None
                if value is None:
                    continue
                short = _column(column)
                if cell.strip().endswith("%") or "%" in column:
                    percents.add(short)
                    value *= 1.0 if cell.strip().endswith("%") else 0.01
                if cell.strip().endswith(("%", "Hz")) or _RATIO.search(column):
                    ratios.add(short)
                row.values[short] = value
    if not rows:
        raise TraceError(
            f"--import {path}: no table of functions found; export one with 'vtune -report hotspots -format csv' "
            "or 'AMDuProfCLI report -f csv'"
        )
    tool = "AMD uProf" if "AMD uProf" in text or "HOTTEST FUNCTIONS" in text else "Intel VTune"
    columns = list(dict.fromkeys(column for row in rows.values() for column in row.values))
    return Export(tool, columns, ratios, percents, list(rows.values()))


def split(export: Export, known: Mapping) -> VendorSplit:
    """Each function's counts go to operations as its samples did when the mapping was measured.

    Ratios cannot be added: an operation's is the mean of its functions', weighted by what they are a share of: cycles
    (or CPU time where there are none), instructions for those per instruction.
    """
    weights = Weights(known)
    base = next((name for name in _BASES if name in export.columns), None)
    base = base or next((name for name in export.columns if name not in export.ratios), export.columns[0])
    retired = next((name for name in _INSTRUCTIONS if name in export.columns), base)
    sums: dict[str, dict[str, float]] = {}
    basis: dict[tuple[str, str], float] = {}
    for row in export.rows:
        parts = weights.of(row.names, row.library) or {UNMAPPED: 1.0}
        for operation, part in parts.items():
            into = sums.setdefault(operation, {})
            for column, value in row.values.items():
                if column not in export.ratios:
                    into[column] = into.get(column, 0.0) + value * part
                    continue
                weight = part * row.values.get(retired if _PER_INSTRUCTION.search(column) else base, 0.0)
                into[column] = into.get(column, 0.0) + value * weight
                basis[operation, column] = basis.get((operation, column), 0.0) + weight
    for (operation, column), weight in basis.items():
        sums[operation][column] = sums[operation][column] / weight if weight else 0.0
    total = sum(values.get(base, 0.0) for values in sums.values())
    missed = sums.get(UNMAPPED, {}).get(base, 0.0)
    order = sorted(sums, key=lambda operation: -sums[operation].get(base, 0.0))
    columns = [base, *(column for column in export.columns if column != base)]
    return VendorSplit(columns, {name: sums[name] for name in order}, 1 - missed / total if total else 0.0)


def _tables(lines: list[str]) -> Iterator[list[dict[str, str]]]:
    """Every table of functions, as rows by column. A table ends with an empty line or the file."""
    table: list[dict[str, str]] = []
    header: list[str] = []
    delimiter = ","
    for line in [*lines, ""]:
        if not line.strip():
            if table:
                yield table
            table, header = [], []
        elif header:
            cells = next(csv.reader([line], delimiter=delimiter))
            if len(cells) > 1:
                table.append(dict(zip(header, cells, strict=False)))
        else:
            for delimiter in ("\t", ";", ","):
                cells = next(csv.reader([line], delimiter=delimiter))
                if len(cells) > 1 and cells[0].strip() in _NAMES:
                    header = [cell.strip() for cell in cells]
                    break


def _column(name: str) -> str:
    return name.strip().removeprefix("Hardware Event Count:").removesuffix(":Self")


def _number(cell: str) -> float | None:
    match = _VALUE.match(cell.strip())
    if match is None:
        return None
    return float(match[1].replace(",", "")) * _UNITS.get((match[2] or "").lower(), 1.0)
