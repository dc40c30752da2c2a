"""Random numbers that belong to a sample, or to a worker."""

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """64 well-spread bits from a few integers (splitmix64's finaliser over a running sum)."""
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def number(index: Any) -> int:
    """A number that stands for any index object, the same in every process."""
    if isinstance(index, int):
        return index
    return int.from_bytes(hashlib.blake2b(pickle.dumps(index, protocol=5), digest_size=8).digest(), "little")


def seed_sample(seed: int, epoch: int, index: Any, *salt: int) -> None:
    """Seed torch's, Python's and numpy's global generators for one sample (with ``salt``: for something else of it)."""
    value = mix(seed, epoch, number(index), *salt)
    torch.default_generator.manual_seed(value >> 1)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)  # noqa: NPY002  (the generator that datasets use)


def seed_worker(base_seed: int, worker: int) -> None:
    """Seed them once for a worker, to the values torch's DataLoader uses."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    state = np.random.SeedSequence([worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]).generate_state(4)
    np.random.seed(state)  # noqa: NPY002  (the generator that datasets use)


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the global generators of this process as they were found."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
