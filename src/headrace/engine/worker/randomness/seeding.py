"""Random numbers that belong to a sample, or to a worker."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from numpy import random as numpy_random  # here: numpy would only do so when it is first used, in every worker

from headrace.engine.worker.randomness.index_numbers import number

_MASK = (1 << 64) - 1


@lru_cache(maxsize=64)
def _base(seed: int, epoch: int, salt: int) -> int:
    """The number that the seeds of all samples of an epoch start from."""
    return _spread(_spread(_spread(seed) + epoch) + salt)


def _spread(value: int) -> int:
    """64 well-spread bits (splitmix64's step and finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def seed_sample(seed: int, epoch: int, index: Any, salt: int = 0) -> None:
    """Seed torch's, Python's and numpy's global generators for one sample (with ``salt``: for something else of it)."""
    value = _spread(_base(seed, epoch, salt) + number(index))
    torch.default_generator.manual_seed(value >> 1)
    random.seed(value)
    numpy_random.seed(value & 0xFFFFFFFF)  # which takes no more than 32 bits


def seed_worker(base_seed: int, worker: int) -> None:
    """Seed them once for a worker, to the values torch's DataLoader uses."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    state = numpy_random.SeedSequence([worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]).generate_state(4)
    numpy_random.seed(state)


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the global generators of this process as they were found."""
    states = torch.get_rng_state(), random.getstate(), numpy_random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy_random.set_state(states[2])
