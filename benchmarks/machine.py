"""What a result was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def describe() -> dict[str, Any]:
    """CPU, cores, memory, kernel, versions, commit and present load; no host or user names."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": [round(value, 2) for value in os.getloadavg()],
        **_gpu(),
        **{name: _version(name) for name in ("torch", "torchvision", "numpy", "headrace")},
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(" ", "minutes"),
    }


def line(machine: dict[str, Any]) -> str:
    """The machine in one line, for tables."""
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    commit = f" ({machine['commit']})" if machine.get("commit") else ""
    date = f", {machine['date']}" if machine.get("date") else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB{gpu}; "
        f"{machine['kernel']}; {machine['python']}; torch {machine['torch']}, "
        f"headrace {machine['headrace']}{commit}{date}; load before {machine['load'][0]}"
    )


def _cpu_model() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith(("model name", "Model")):
            return text.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the source that is measured, and whether it was changed since; None where that is no checkout.

    ``BENCHMARKS_COMMIT`` says it where a copy is measured.
    """
    if told := os.environ.get("BENCHMARKS_COMMIT"):
        return told

    def said(*command: str) -> str:
        return subprocess.run(("git", *command), capture_output=True, check=True, text=True, cwd=_HERE).stdout.strip()

    try:
        return said("rev-parse", "--short", "HEAD") + (
            " and changes" if said("status", "--porcelain", "../src") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _gpu() -> dict[str, str]:
    """The first NVIDIA GPU by its driver's own listing: asking torch would initialise CUDA."""
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        for text in (folder / "information").read_text().splitlines():
            if text.startswith("Model:"):
                return {"gpu": text.partition(":")[2].strip()}
    return {}
