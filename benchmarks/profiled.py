"""The program that profilers are compared on: ImageFolder, four operations, two persistent workers, batch 32.

``python -m benchmarks.profiled FOLDER EPOCHS LOADER [--trace FILE] [--kineto FILE]`` prints wall and CPU seconds of the
epochs after a first one. LOADER is torch or headrace; --trace records with headrace, --kineto with torch.profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

import torch

from benchmarks import workloads
from benchmarks.measure import Meter


def main() -> None:
    """Load, measure, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("epochs", type=int)
    parser.add_argument("loader", choices=["torch", "headrace"])
    parser.add_argument("--trace")
    parser.add_argument("--kineto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arguments = {"batch_size": 32, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    dataset = workloads.image_folder(options.folder)
    if options.loader == "headrace":
        import headrace

        loader = headrace.DataLoader(dataset, **arguments, trace=options.trace)
    else:
        loader = torch.utils.data.DataLoader(dataset, **arguments)
        if options.trace:
            import headrace

            loader = headrace.traced(loader, options.trace)
    consume(loader)
    with torch.profiler.profile() if options.kineto else contextlib.nullcontext() as profiler, Meter() as meter:
        for _ in range(options.epochs):
            consume(loader)
    if options.kineto:
        profiler.export_chrome_trace(options.kineto)
    print("\nmeasured:" + json.dumps({"wall": meter.wall, "cpu": meter.cpu, "others": meter.others}), flush=True)


def consume(loader) -> None:
    """One epoch."""
    for images, labels in loader:
        assert len(images) == len(labels)


if __name__ == "__main__":
    sys.exit(main())
