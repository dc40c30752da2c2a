"""What the operations of three pipelines take: the programs in examples/, traced; Table II of the Lotus paper.

Classification (JPEG files, RandomResizedCrop, flip, ToTensor, Normalize), segmentation (3D volumes, a crop that looks
for foreground in two of five samples, flips, casts, brightness, noise) and detection (JPEG files with boxes, Resize).
The data are generated, so that anyone can run it; the sizes, and with them the times, are not those of ImageNet,
KiTS19 and COCO. One epoch each, two workers, milliseconds; "<10 ms" and "<100 µs" are shares of the calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import Figures, isolated
from benchmarks.report import Report, Table
from benchmarks.scope import Scope

EXAMPLES = Path(__file__).parent.parent / "examples"
PIPELINES = {
    "classification": ("--images", 200, 1000),
    "segmentation": ("--volumes", 24, 96),
    "detection": ("--images", 60, 300),
}
LIMIT = 1800.0
COLUMNS = ["operation", "calls", "mean ms", "P50", "P90", "P99", "<10 ms %", "<100 µs %", "varies %", "share %"]


def run(report: Report, scope: Scope) -> None:
    """Each program, and the report of its trace."""
    for name, (option, few, many) in PIPELINES.items():
        scope.say(name)
        program = [sys.executable, str(EXAMPLES / f"{name}.py"), option, str(few if scope.quick else many)]
        with tempfile.TemporaryDirectory(prefix="headrace-pipelines-") as folder:
            loader = isolated(partial(traced, program, str(Path(folder) / "run.trace")), limit=LIMIT)
        report.tables.append(table(name, loader["figures"]["operations"]))
        report.notes.append(f"{name}: {loader['verdict']['meaning']}")
        report.raw[name] = loader


def traced(program: list[str], trace: str) -> Figures:
    """What the report of a program's trace says of its one loader."""
    subprocess.run([*program, "--trace", trace], check=True, capture_output=True)
    command = [sys.executable, "-m", "headrace.cli.__main__", "trace", "report", trace, "--json"]
    (loader,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["loaders"]
    return dict(loader)


def table(name: str, operations: list[dict]) -> Table:
    """One row per operation."""
    made = Table(name.capitalize(), COLUMNS)
    for row in operations:
        time = row["time"]
        lengths = [1e3 * time[key] for key in ("mean", "p50", "p90", "p99")]
        shares = [100 * row[key] for key in ("under_10ms", "under_100us")]
        made.add(
            row["name"], time["count"], *lengths, *shares, 100 * time["std"] / (time["mean"] or 1), 100 * row["share"]
        )
    return made
