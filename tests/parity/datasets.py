"""Datasets, samplers and functions that workers of any start method can import."""

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

MARK = "as imported"


class Squares(Dataset[int]):
    """index → index squared; the length may be changed."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return index * index


class Attribute(Dataset[int]):
    """Every sample is the current value of one attribute."""

    def __init__(self, value: int, n: int = 4) -> None:
        self.value = value
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return self.value


class Calling(Dataset[Any]):
    """index → function(index)."""

    def __init__(self, function: Callable[[int], Any], n: int = 4) -> None:
        self.function = function
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


class Recording(Dataset[int]):
    """Remembers which indices were asked of this copy."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.calls: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        return index


class Bulk(Dataset[int]):
    """Has ``__getitems__``; gives back the number of calls and the indices."""

    def __init__(self, n: int, extra: int = 0) -> None:
        self.n = n
        self.extra = extra

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        assert type(indices) is list
        return [1000 + index for index in indices] + [-1] * self.extra


class LazyBulk(Bulk):
    """What it gives can be gone through once, and has no length."""

    def __getitems__(self, indices: list[int]) -> Iterator[int]:
        return iter(indices)


class FalsyBulk(Dataset[int]):
    """``__getitems__`` is there but switched off."""

    __getitems__ = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Gated(Dataset[int]):
    """Sample ``held`` waits for ``opener`` to be made, or for ``gate`` to be opened."""

    def __init__(self, n: int, held: int, opener: int | None = None) -> None:
        self.n = n
        self.held = held
        self.opener = opener
        self.gate: Event = multiprocessing.Event()
        self.touched: Event = multiprocessing.Event()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.touched.set()
        if index == self.opener:
            self.gate.set()
        if index == self.held and not self.gate.wait(240):
            raise RuntimeError("the gate stayed shut")
        return index


class Failing(Dataset[int]):
    """Raises the exception that the factory makes for the given indices."""

    def __init__(self, n: int, bad: set[int], error: Callable[[], BaseException]) -> None:
        self.n = n
        self.bad = bad
        self.error = error

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.error()
        return index


class Deadly(Dataset[int]):
    """Sample 1 always kills the process that makes it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            if self.how == "signal":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)
        return index


class Blocking(Dataset[int]):
    """Leaves a file for every sample started and then waits until the event is set."""

    def __init__(self, folder: str, release: Event) -> None:
        self.folder = folder
        self.release = release

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        Path(self.folder, str(index)).touch()
        self.release.wait()
        return index


class Unpicklable(Squares):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.lock = threading.Lock()


class Held(Dataset[float]):
    """Draws from a generator object that the dataset holds."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


class Stream(IterableDataset[int]):
    """Worker w yields ``100 * w + i`` for i below ``sizes[w]``; one process yields the first size."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter(range(100 * worker, 100 * worker + self.sizes[worker]))


class Counted(IterableDataset[int]):
    """Claims one length, yields another number of samples."""

    def __init__(self, claimed: int, real: int) -> None:
        self.claimed = claimed
        self.real = real

    def __len__(self) -> int:
        return self.claimed

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.real))


class Epochs(IterableDataset[int]):
    """Yields how many times this copy was iterated."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([self.epoch] * 2)


class Iter:
    """Only ``__iter__``, and not an IterableDataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class CountingSampler:
    """Sequential; remembers how many indices were drawn from it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.drawn = 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for index in range(self.n):
            self.drawn += 1
            yield index


class RaisingSampler:
    """Raises after some indices."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        yield from range(self.good)
        raise ArithmeticError("sampler")


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Log:
    """A worker_init_fn that appends a line per call to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, worker_id: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{worker_id} {os.getpid()}\n")

    def read(self) -> list[tuple[int, int]]:
        """(worker id, process id) of every call, sorted."""
        rows = self.path.read_text().splitlines() if self.path.exists() else []
        return sorted((int(a), int(b)) for a, b in map(str.split, rows))


class FirstDraws:
    """A worker_init_fn that saves the worker's seed and the first draw of every generator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert info.id == worker_id
        state = np.random.get_state()
        values = (
            info.seed,
            torch.initial_seed(),
            random.random(),
            torch.rand(()).item(),
            state[1].tolist(),
        )
        path = self.folder / str(worker_id)
        torch.save(values, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)


class OnlyLast:
    """A worker_init_fn that raises in one worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def __call__(self, worker_id: int) -> None:
        if worker_id == self.worker:
            raise LookupError("no start")


def worker_of(index: int) -> tuple[int, int, int]:
    """(worker id, number of workers, seed)."""
    info = get_worker_info()
    assert info is not None
    return info.id, info.num_workers, info.seed


def pid_of(index: int) -> int:
    return os.getpid()


def mark_of(index: int) -> str:
    return MARK


def augment(index: int) -> tuple[int, float, float, float]:
    """A sample that depends on all three global generators."""
    return index, torch.rand(()).item(), random.random(), float(np.random.rand())


def torch_random(index: int) -> float:
    return torch.rand((), dtype=torch.float64).item()


def identity(batch: Any) -> Any:
    return batch


def plus_one(batch: list[int]) -> torch.Tensor:
    return torch.tensor(batch) + 1


def with_pid(batch: list[Any]) -> tuple[list[Any], int]:
    return batch, os.getpid()


def unpicklable(batch: list[Any]) -> Any:
    return lambda: batch


def raise_type_error(batch: list[Any]) -> Any:
    raise TypeError("collate")
