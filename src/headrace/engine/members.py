"""The identity of a sample: where it lies in datasets made of others, and what it is called there."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
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
    """The part of a ``ConcatDataset`` that a sample belongs to: the number of that dataset, and the sample's index
    there.

    ``IndexError`` where there is no such sample: the first one would take what is left below 0 for one of its own.
    """
    total = several.cumulative_sizes[-1]
    if not -total <= index < total:
        raise IndexError(f"there is no sample {index}: the datasets have {total} together")
    index += total if index < 0 else 0
    part = bisect_right(several.cumulative_sizes, index)
    return part, index - (several.cumulative_sizes[part - 1] if part else 0)


def key_of(dataset: Any, index: Any) -> str | None:
    """The name of a sample: its key in a store, or its file's path; None if it has no name."""
    dataset, index = member(dataset, index)
    if not isinstance(index, (int, np.integer)):
        return None
    index = int(index)
    keys, files = getattr(dataset, "keys", None), getattr(dataset, "samples", None)
    if isinstance(keys, Sequence):
        return str(keys[index])
    path = files[index] if isinstance(files, list) else None  # torchvision's folders
    return path[0] if isinstance(path, tuple) and path and isinstance(path[0], str) else None


def told(dataset: Any, index: Any) -> str:
    """A sample's name in errors: its index, that in the dataset it is read from, its key or its file's path."""
    found = f"sample {index!r}"
    with suppress(Exception):  # indices, keys and paths are the user's objects, and there is an error to be told
        whole, within = member(dataset, index)
        if whole is not dataset:
            found += f", which is {int(within)} of its {type(whole).__name__}"
        key = key_of(whole, within)
        found += "" if key is None else f": {key}"
    return found


def bulk_of(dataset: Any) -> Any:
    """The dataset's ``__getitems__``, or None.

    Subsets of torch's have one for datasets in bulk; where theirs makes samples one by one, one that fails is known.
    """
    whole = dataset
    while type(whole) is Subset:
        whole = whole.dataset
    return getattr(dataset, "__getitems__", None) if getattr(whole, "__getitems__", None) else None
