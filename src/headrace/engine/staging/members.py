"""Who a sample is: where it lies in datasets made of others, and what it is called there."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset


def member(dataset: Any, index: Any) -> tuple[Any, Any]:
    """The dataset that a sample is read from, and its index there."""
    while type(dataset) in {Subset, ConcatDataset}:
        if type(dataset) is Subset:
            dataset, index = dataset.dataset, dataset.indices[index]
        else:
            part, index = part_of(dataset, index)
            dataset = dataset.datasets[part]
    return dataset, index


def part_of(several: Any, index: int) -> tuple[int, int]:
    """Of a ``ConcatDataset``: the number of the one that a sample is of, and its index there.

    ``IndexError`` where there is no such sample: the first one would take what is left below 0 for one of its own.
    """
    total = several.cumulative_sizes[-1]
    if not -total <= index < total:
        raise IndexError(f"there is no sample {index}: the datasets have {total} together")
    index += total if index < 0 else 0
    part = bisect_right(several.cumulative_sizes, index)
    return part, index - (several.cumulative_sizes[part - 1] if part else 0)


def key_of(dataset: Any, index: Any) -> str | None:
    """What a sample is called: its key in a store, or its file's path; None where it has no name."""
    dataset, index = member(dataset, index)
    if not isinstance(index, int):
        return None
    keys, files = getattr(dataset, "keys", None), getattr(dataset, "samples", None)
    if isinstance(keys, Sequence):
        return str(keys[index])
    path = files[index] if isinstance(files, list) else None  # torchvision's folders
    return path[0] if isinstance(path, tuple) and path and isinstance(path[0], str) else None
