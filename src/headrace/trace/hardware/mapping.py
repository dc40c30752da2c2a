"""Operations and the C and C++ functions that work for them, as a file that other profiles can be split by."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import TraceError
from headrace.trace.hardware.callgrind_file import InstructionCounts
from headrace.trace.hardware.names import spellings
from headrace.trace.hardware.profile import Profile
from headrace.trace.hardware.symbols import Function

FORMAT = "headrace mapping 1"


@dataclass(frozen=True)
class Link:
    """A function seen in an operation.

    ``share`` of the operation's samples were in the function, ``belongs`` of the function's samples in the operation;
    ``*_low`` and ``*_high`` are the ends of the 95 % intervals that so many samples give.
    """

    function: str
    library: str
    part: str
    samples: int
    share: float
    share_low: float
    share_high: float
    belongs: float
    belongs_low: float
    belongs_high: float


Mapping = dict[str, list[Link]]
"""Links by operation, most samples first."""


def mapping(found: Profile) -> Mapping:
    """The mapping that a profile shows; what lies around the operations is in it, else the shares would be wrong."""
    return {
        operation.name: [
            Link(*entry.function, entry.samples, *entry.share, *entry.belongs)
            for entry in operation.entries
            if entry.samples
        ]
        for operation in found.operations
    }


def counted(counts: InstructionCounts) -> Mapping:
    """The mapping that exact counts show: "samples" are instructions, and there is nothing to be unsure of."""
    everywhere = Counter[Function]()
    for operation in counts.operations.values():
        everywhere.update({function: costs[0] for function, costs in operation.functions.items()})
    found: Mapping = {}
    for name, operation in counts.operations.items():
        total = max(1, sum(costs[0] for costs in operation.functions.values()))
        ranked = sorted(operation.functions.items(), key=lambda item: -item[1][0])
        found[name] = [
            Link(*function, costs[0], *[costs[0] / total] * 3, *[costs[0] / everywhere[function]] * 3)
            for function, costs in ranked
            if costs[0]
        ]
    return found


def write(path: Path, known: Mapping, event: str) -> None:
    """Write a mapping as JSON; ``event``: what was counted. Raises ``TraceError`` when it cannot be written."""
    operations = {name: [asdict(link) for link in links] for name, links in known.items()}
    facts = {"format": FORMAT, "event": event, "operations": operations}
    try:
        path.write_text(json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise TraceError(
            f"--mapping {path}: cannot be written ({error.strerror}); name a file in a directory that exists"
        ) from error


def read(path: Path) -> Mapping:
    """A mapping written before. Raises ``TraceError`` when there is none."""
    hint = "make one with 'headrace trace hw --mapping FILE -- python train.py'"
    try:
        facts: Any = json.loads(path.read_text())
        if facts["format"] != FORMAT:
            raise ValueError
        return {name: [Link(**link) for link in links] for name, links in facts["operations"].items()}
    except OSError as error:
        raise TraceError(f"--mapping {path}: cannot be read ({error.strerror}); {hint}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"--mapping {path}: this is no mapping; {hint}") from error


class Weights:
    """Shares by which a function's counts are split: its measured samples in each operation."""

    def __init__(self, known: Mapping) -> None:
        """Functions are known by library and name, and by name alone for profiles that do not tell libraries."""
        self._exact: dict[tuple[str, str], dict[str, int]] = {}
        self._named: dict[str, dict[str, int]] = {}
        for operation, links in known.items():
            for link in links:
                for name in spellings(link.function):
                    _add(self._exact.setdefault((_stem(link.library), name), {}), operation, link.samples)
                    _add(self._named.setdefault(name, {}), operation, link.samples)

    def of(self, names: Iterable[str], library: str) -> dict[str, float]:
        """The share of each operation in a function that goes by any of these names; empty when it is unknown."""
        wanted = dict.fromkeys(spelling for name in names for spelling in spellings(name))
        for name in wanted:
            counts = self._exact.get((_stem(library), name))
            if counts is None and (not library or library.startswith("[")) and not name.startswith("function@"):
                counts = self._named.get(name)
            if counts:
                total = sum(counts.values())
                return {operation: count / total for operation, count in counts.items()}
        return {}


def _stem(library: str) -> str:
    """``libjpeg.so.62.3.0`` and ``/usr/lib/libjpeg.so.62`` are one library."""
    name = library.replace("\\", "/").rpartition("/")[2]
    return re.sub(r"\.so(\.[0-9.]+)?$|-[0-9.]+\.so$", "", name)


def _add(counts: dict[str, int], operation: str, samples: int) -> None:
    counts[operation] = counts.get(operation, 0) + samples
