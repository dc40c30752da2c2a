"""All workers of an epoch have the dataset as it was when the epoch's first ones were started."""

import multiprocessing
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.cache.backends.shm import remove
from headrace.engine.worker.startup.moment import SMALL
from tests.loader.data import Once
from tests.loader.support import PATIENCE, forkers, kill
from tests.names import new_name

METHODS = ["fork", "spawn", "forkserver"]


class Stalls:
    """A hook that waits at one index until a file is there."""

    def __init__(self, at, path):
        self.at, self.path = at, path

    def __call__(self, index):
        while index == self.at and not self.path.exists():
            time.sleep(0.01)


class Part:
    """Something that a dataset holds."""

    def __init__(self, value):
        self.value = value


class Changing(Dataset):
    """Samples that say what the dataset was like."""

    def __init__(self, n, hook=lambda _: None):
        self.n, self.hook = n, hook
        self.plain, self.part, self.listed = 1, Part(1), [1]
        self.array, self.tensor = np.ones(1, np.int64), torch.ones(1, dtype=torch.int64)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.hook(index)
        parts = self.plain, self.part.value, self.listed[0], int(self.array[0]), int(self.tensor[0])
        return index, torch.tensor(parts)

    def change(self):
        self.plain, self.part.value, self.listed[0] = 2, 2, 2
        self.array[0] = self.tensor[0] = 2


def checked(loader, dataset, after=1):
    """Whether what came in an epoch, in which the dataset is changed, is of one moment; and what it was."""
    seen, found = [], set()
    for number, (indices, parts) in enumerate(loader):
        if number == after:
            dataset.change()
        seen += indices.tolist()
        found |= set(parts.flatten().tolist())
    assert sorted(seen) == list(range(len(dataset)))
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_takes_the_place_of_another(method, persistent, tmp_path):
    dataset = Changing(60, Once(tmp_path / "killed", 40))
    options = {"num_workers": 2, "multiprocessing_context": method, "prefetch_factor": 1, "timeout": PATIENCE}
    with headrace.DataLoader(dataset, 5, persistent_workers=persistent, **options) as loader:
        assert checked(loader, dataset) == 1
        assert loader.stats().restarts == 1
        # The next epoch is of the dataset as it is then, but for workers that stay.
        assert checked(loader, dataset) == (1 if persistent else 2)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_is_added(method, tmp_path):
    release = tmp_path / "go"

    dataset = Changing(400, Stalls(40, release))
    loader = headrace.DataLoader(
        dataset, 4, num_workers=1, multiprocessing_context=method, in_order=False, timeout=PATIENCE,
        scheduling=headrace.Scheduling(spares=1), shuffle=False,
    )  # fmt: skip
    found, iterator = set(), iter(loader)
    for _, parts in iterator:
        dataset.change()
        found |= set(parts.flatten().tolist())
        if loader.stats().spares:
            release.touch()
    assert found == {1}
    assert loader.stats().spares


class Holding(Dataset):
    """What only a process that is being started can be handed, and what processes share."""

    def __init__(self, context):
        self.lock, self.queue = context.Lock(), context.Queue()
        self.read, self.write = context.Pipe()
        self.shared, self.large = torch.ones(3).share_memory_(), torch.ones(SMALL)
        self.view, self.leaf = self.large[5:9], torch.nn.Parameter(torch.ones(2))
        self.large[5] = 3

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with self.lock:
            self.shared[0] += 1
        self.queue.put(index)
        self.write.send(index)
        return float(self.view.sum() + self.large[5] + self.leaf.detach().sum())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_processes_share_stays_shared(method):
    context = multiprocessing.get_context(method)
    dataset = Holding(context)
    loader = headrace.DataLoader(dataset, None, num_workers=2, multiprocessing_context=context)
    assert [float(each) for each in loader] == [6 + 3 + 2] * 4
    assert dataset.shared.tolist() == [5, 1, 1]
    assert sorted(dataset.queue.get(timeout=PATIENCE) for _ in range(4)) == [0, 1, 2, 3]
    assert sorted(dataset.read.recv() for _ in range(4)) == [0, 1, 2, 3]
    dataset.queue.close()
    dataset.queue.join_thread()
    dataset.read.close()
    dataset.write.close()


class Staged(Changing):
    """The same in stages, for a cache."""

    def fetch(self, index):
        return index

    def decode(self, encoded):
        return encoded, torch.tensor((self.plain, self.part.value))

    def augment(self, decoded):
        return decoded

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


@pytest.fixture
def name():
    chosen = new_name()
    yield chosen
    remove(chosen)


def test_who_is_forked_from_the_trainer_after_all_keeps_nothing(workers, name):
    """The process that replaces workers has the dataset as it was; the trainer has it as it is."""
    where = headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))
    dataset = Staged(60)
    options = {"num_workers": 2, "prefetch_factor": 1, "timeout": PATIENCE, "cache": where}
    with headrace.DataLoader(dataset, 5, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        dataset.change()
        for process in (*forkers(), *workers()):
            kill(process)
        with pytest.warns(RuntimeWarning, match="the process that replaces workers is gone"):
            rest = [value for _, parts in iterator for value in parts.flatten().tolist()]
    assert set(rest) == {1, 2}
    with headrace.DataLoader(Staged(60), 5, **options) as loader:
        assert {value for _ in range(2) for _, parts in loader for value in parts.flatten().tolist()} == {1}
