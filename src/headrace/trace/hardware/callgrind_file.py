"""Reader of callgrind's files: costs of functions, by operation."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from headrace.trace.hardware.elf import opened
from headrace.trace.hardware.symbols import Function, demangled, part

_RECURSION = re.compile(r"'\d+$")
_NAMED = re.compile(r"^\((\d+)\)(?: (.*))?$")
_TRIGGER = "Client Request: "


@dataclass
class OperationCounts:
    """Exact counts of an operation over all its measured calls."""

    calls: int = 0
    functions: dict[Function, list[int]] = field(default_factory=dict)


@dataclass
class InstructionCounts:
    """All operations. ``events`` names the columns: Ir instructions, D1mr first-level data read misses, ..."""

    events: list[str] = field(default_factory=list)
    operations: dict[str, OperationCounts] = field(default_factory=dict)


def read(folder: Path) -> InstructionCounts:
    """The counts of all processes that wrote to a folder."""
    counts = InstructionCounts()
    for path in sorted(folder.glob("callgrind.out.*")):
        with path.open(errors="replace") as lines:
            _add(counts, lines)
    for counted in counts.operations.values():
        names = list(counted.functions)
        counted.functions = dict(zip(demangled(names), counted.functions.values(), strict=True))
    return counts


def data(counts: InstructionCounts) -> dict[str, Any]:
    """The counts as plain values, sums over all measured calls."""
    return {
        name: {
            "calls": counted.calls,
            "functions": [
                {**function._asdict(), "counts": dict(zip(counts.events, costs, strict=False))}
                for function, costs in sorted(counted.functions.items(), key=lambda item: -item[1][0])
            ],
        }
        for name, counted in counts.operations.items()
    }


def _add(counts: InstructionCounts, lines: Iterable[str]) -> None:
    """Add a file's counts. Each of its parts is one call of an operation; names are numbered at their first
    appearance.
    """
    names: dict[tuple[str, str], str] = {}
    current: OperationCounts | None = None
    library = function = ""
    inclusive = False
    for line in lines:
        text = line.rstrip("\n")
        key, equals, value = text.partition("=")
        if equals and key in {"ob", "fn", "cob", "cfn"}:
            name = _name(names, "ob" if key.endswith("ob") else "fn", value)
            if key == "ob":
                library = name
            elif key == "fn":
                function = _RECURSION.sub("", name)
        elif equals and key == "calls":
            inclusive = True  # the next line is the callee's cost, which it has itself
        elif text[:1].isdigit() or text[:1] in {"+", "-", "*"}:
            if not inclusive and current is not None:
                _cost(current, function, library, text)
            inclusive = False
        elif text.startswith("events:"):
            counts.events = text.split()[1:]
        elif text.startswith("part:"):
            current, library, function = None, "", ""
        elif text.startswith("desc: Trigger:") and _TRIGGER in text:
            current = counts.operations.setdefault(text.partition(_TRIGGER)[2], OperationCounts())
            current.calls += 1


def _cost(counted: OperationCounts, name: str, library: str, text: str) -> None:
    costs = [int(word) for word in text.split()[1:]]
    if name.startswith("0x"):
        name = _bucket(library, int(name, 16))
    known = counted.functions.setdefault(Function(name, Path(library).name, part(library)), [])
    known += [0] * (len(costs) - len(known))
    for at, cost in enumerate(costs):
        known[at] += cost


@cache
def _bucket(library: str, address: int) -> str:
    """A stripped library's function, named as in samples."""
    found = opened(library)
    return found.at(address) if found else f"{address:#x}"


def _name(names: dict[tuple[str, str], str], kind: str, value: str) -> str:
    match = _NAMED.match(value)
    if match is None:
        return value
    if match[2] is not None:
        names[kind, match[1]] = match[2]
    return names.get((kind, match[1]), "?")
