"""The samples of an epoch, where they can be known before its order is drawn."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler


def members(index_sampler: Any, length: int) -> NDArray[np.int64] | range | None:
    """The indices that torch's samplers draw in an epoch, each of them once; None for all other samplers.

    ``length``: of the dataset. Draws nothing from anybody's random numbers.
    """
    sampler = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    found: NDArray[np.int64] | None = None
    if type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    ):
        whole = len(sampler.data_source)
        return range(whole) if 0 < whole <= length else None
    if type(sampler) is SubsetRandomSampler:
        found = _array(sampler.indices)
    elif type(sampler) is DistributedSampler:
        found = _array(list(sampler))
    if found is None or len(np.unique(found)) < len(found) or not len(found):
        return None
    return found if found.min() >= 0 and found.max() < length else None


def _array(indices: Any) -> NDArray[np.int64] | None:
    if not all(isinstance(index, (int, np.integer)) for index in indices):
        return None
    return np.array(indices, np.int64)
