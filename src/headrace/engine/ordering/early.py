"""Facts of an epoch that can be known before it begins: its samples, and its order, as if it were drawn when it
begins.
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from headrace.cache.backends.entry_word import Array
from headrace.engine.ordering.order import Order


def is_foreseeable(index_sampler: Any) -> bool:
    """True if drawing an order early can be undone: torch's own samplers, which draw from nobody's generator."""
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    return type(inner) is SequentialSampler or (type(inner) is RandomSampler and inner.generator is None)


def members(index_sampler: Any, length: int) -> Array | range | None:
    """The indices that torch's samplers draw in an epoch, each of them once; None for all other samplers.

    ``length``: of the dataset. Draws nothing from anybody's random numbers.
    """
    sampler = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    found: Array | None = None
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


def _array(indices: Any) -> Array | None:
    if not all(isinstance(index, (int, np.integer)) for index in indices):
        return None
    return np.array(indices, np.int64)


class EarlyOrder(Order):
    """The order of the next epoch, drawn while the last samples of this one are made. Leaves the global generator
    as it was.

    ``confirm`` says whether the order is the one that would be drawn then.
    """

    def __init__(self, index_sampler: Any) -> None:
        """Draws nothing yet. The sampler is one that ``is_foreseeable``."""
        super().__init__(index_sampler)
        self._length = len(index_sampler)
        self._before: torch.Tensor | None = None
        self._after: torch.Tensor | None = None

    def _next(self) -> None:
        """Draw the next index, or batch of indices. The first one takes a seed from the global generator."""
        if self._before is not None:
            super()._next()
            return
        self._before = torch.default_generator.get_state()
        try:
            super()._next()
        finally:
            self._after = torch.default_generator.get_state()
            torch.default_generator.set_state(self._before)

    def confirm(self, *, exactly: bool) -> bool:
        """The epoch begins now: the global generator is left as if the order were drawn now. False when it is void.

        ``exactly``: it must be the order that would be drawn now, so nobody may have used the generator meanwhile.
        """
        if len(self._sampler) != self._length:
            return False
        now = torch.default_generator.get_state()
        if self._before is None or self._after is None:
            self._before = now
            return True
        if torch.equal(self._before, self._after):
            return True
        if torch.equal(now, self._before):
            torch.default_generator.set_state(self._after)
            return True
        if not exactly:
            torch.empty((), dtype=torch.int64).random_()  # what the sampler would take: the user's numbers stay his
        return not exactly
