"""Messages between ``headrace run`` and the processes of a program: one variable, small JSON files."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "HEADRACE_RUN"
AUTOMATIC = "automatic"
"""headrace's loader with ``num_workers=None``, whatever the program says."""
PATH = Path(__file__).parent / "path"
"""The folder that goes on PYTHONPATH."""


@dataclass(frozen=True)
class RunOrders:
    """Instructions for the loaders of a program."""

    reports: str
    """A folder: every process that makes a loader leaves a report there."""
    loader: str = "headrace"
    """``torch`` leaves loaders as they are, but records them; ``automatic`` is ours, which chooses its workers."""
    measure: bool = False
    """Take the time of every batch."""
    batches: int = 0
    """End the process after so many; 0 lets it run."""
    seconds: float = 0.0
    """End it so long after its first batch; 0 lets it run."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables for the program's first process; it hands them on."""
        behind = inherited.get("PYTHONPATH")
        path = str(PATH) if not behind else f"{PATH}{os.pathsep}{behind}"
        return {**inherited, "PYTHONPATH": path, VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def here(cls) -> "RunOrders | None":
        """The instructions this process was started with, if any."""
        said = os.environ.get(VARIABLE)
        return None if not said else cls(**json.loads(said))


@dataclass
class ProcessReport:
    """Report of one process on its loaders."""

    rank: int = 0
    loaders: int = 0
    left_alone: list[str] = field(default_factory=list)
    """Subclasses that stayed torch's, with what they override."""
    batches: int = 0
    first: float = 0.0
    """Seconds from the first ``iter()`` until the first batch."""
    seconds: float = 0.0
    """From the first batch to the newest."""
    wait: float = 0.0
    """Of these, those in ``next()``."""
    cpu: float = 0.0
    """CPU time of the process and its workers between ``iter()`` and the end."""
    workers: int = 0

    def write(self, folder: str) -> None:
        """Put it where the command finds it; whole, or not at all."""
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as file:
            json.dump(asdict(self), file)
        Path(file.name).rename(Path(folder) / f"{os.getpid()}.json")


class CommonEnd:
    """The batch after which all ranks of a program end: the first rank whose time is over says it.

    Ranks exchange gradients in every step. One that ended a batch before the others would have them wait for it, or
    fail.
    """

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / "end"

    def agree(self, batches: int) -> None:
        """Say that this rank has had so many batches, and its time is over. No other has had more than one more."""
        with tempfile.NamedTemporaryFile("w", dir=self._file.parent, prefix=".") as file:
            file.write(str(batches + 1))
            file.flush()
            with contextlib.suppress(FileExistsError):  # another rank was first
                os.link(file.name, self._file)  # not renamed: that would put this rank's number over the first one's

    def is_after(self, batches: int) -> bool:
        """True once an end was agreed on and so many batches reach it."""
        try:
            return int(self._file.read_text()) <= batches
        except FileNotFoundError:
            return False


def reports(folder: Path) -> Iterator[ProcessReport]:
    """Reports of all processes, by rank."""
    found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob("[0-9]*.json")]
    return iter(sorted((ProcessReport(**one) for one in found), key=lambda report: report.rank))
