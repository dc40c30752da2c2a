"""Jobs that share a cache in memory, killed at any moment, and their workers too: those that live on miss nothing."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.cache.backends import shm
from tests.names import new_name

pytestmark = pytest.mark.stress
SAMPLES, ROUNDS = 120, 14


class Painted(Dataset):
    """Sample ``i`` is all ``i``, so that one of two halves is noticed."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.augment(self.decode(self.fetch(index)))

    def fetch(self, index: int) -> bytes:
        return bytes([index]) * 20_000

    def decode(self, encoded: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)

    def augment(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded


@pytest.fixture
def cache() -> Iterator[headrace.Cache]:
    """Room for half of the samples, in one form."""
    cache = headrace.Cache(f"shm://{new_name()}", size="1500KiB", split=(0, 100, 0))
    yield cache
    shm.remove(cache.name)


def made(cache: headrace.Cache, *, persistent: bool) -> headrace.DataLoader:
    options = {"in_order": False, "shuffle": True, "num_workers": 2, "timeout": 240}
    return headrace.DataLoader(Painted(), batch_size=6, cache=cache, persistent_workers=persistent, **options)


def is_whole(loader: headrace.DataLoader) -> bool:
    """Whether an epoch has each sample once, and nothing else."""
    found: Counter[int] = Counter()
    for batch in loader:
        found.update(batch[:, 0].tolist())
        if not torch.equal(batch, batch[:, :1].expand_as(batch)):
            return False
    return found == Counter(range(SAMPLES))


def job(cache: headrace.Cache, *, persistent: bool) -> int:
    """A process that trains until it is killed, or something is wrong."""
    pid = os.fork()
    if pid == 0:
        try:
            with made(cache, persistent=persistent) as loader:
                while is_whole(loader):
                    signal.alarm(300)
        finally:
            os._exit(1)
    return pid


def killed(pid: int) -> bool:
    """False if it had ended by itself."""
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_jobs_and_workers_are_killed(cache: headrace.Cache) -> None:
    rng = random.Random(5)
    jobs = [job(cache, persistent=persistent) for persistent in (False, True)]
    try:
        with made(cache, persistent=True) as loader:
            for number in range(ROUNDS):
                assert is_whole(loader)
                which = rng.randrange(2)
                if number % 2:
                    assert killed(jobs[which])
                    jobs[which] = job(cache, persistent=rng.random() < 0.5)
                else:
                    with suppress(psutil.NoSuchProcess, IndexError):
                        rng.choice(psutil.Process(jobs[which]).children(recursive=True)).kill()
            assert is_whole(loader)
    finally:
        assert [killed(pid) for pid in jobs] == [True, True]
