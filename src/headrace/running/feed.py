"""A program that does nothing but load a dataset: ``python -m headrace.running.feed module:name``."""

import argparse
import importlib
import os
import sys
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


def main() -> None:
    """Epoch after epoch, until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    dataset = named(options.dataset)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        options.batch_size,
        shuffle=None if isinstance(dataset, IterableDataset) else True,
        num_workers=options.workers,
    )
    while True:
        for _ in loader:
            pass


def named(name: str) -> Any:
    """The dataset that ``module:name`` names, or that calling it gives.

    Ends the process with a line where there is none. Modules are looked for in the
    working directory first, as ``python`` does.
    """
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as Python itself writes it)
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        sys.exit(f"{name}: {error}")
    if isinstance(found, type) or not (hasattr(found, "__getitem__") or hasattr(found, "__iter__")):
        found = found()
    if hasattr(found, "__len__") and not len(found):
        sys.exit(f"{name}: the dataset is empty")
    return found


if __name__ == "__main__":
    main()
