"""Datasets and functions that fail, die or draw at a chosen moment; importable by workers of any start method."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

Hook = Callable[[int], None]


def content(index: int) -> torch.Tensor:
    """What sample ``index`` holds; its length differs from sample to sample."""
    return torch.arange(1 + index % 4, dtype=torch.float32) + 10 * index


def fixed(index: int) -> torch.Tensor:
    """What sample ``index`` holds where samples have one shape."""
    return torch.arange(3, dtype=torch.float32) + 10 * index


def nothing(index: int) -> None:
    """The hook that does nothing."""


class Pairs(Dataset[tuple[int, torch.Tensor]]):
    """(index, ``make(index)``), after ``hook(index)`` and a moment of work."""

    def __init__(
        self,
        n: int,
        make: Callable[[int], torch.Tensor] = fixed,
        hook: Hook = nothing,
        seconds: float = 0.0,
    ) -> None:
        self.n, self.make, self.hook, self.seconds = n, make, hook, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        self.hook(index)
        if self.seconds:
            time.sleep(self.seconds)
        return index, self.make(index)


class BulkPairs(Pairs):
    """The same, a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, torch.Tensor]]:
        return [self[index] for index in indices]


class BulkOnly(Pairs):
    """Only whole batches can be had."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        raise LookupError("one at a time is not possible")

    def __getitems__(self, indices: list[int]) -> list[tuple[int, torch.Tensor]]:
        for index in indices:
            self.hook(index)
        return [(index, self.make(index)) for index in indices]


class Draws(Dataset[Any]):
    """A sample that depends on all three global generators."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2), random.random(), np.random.rand(2), np.random.randint(1 << 30)


class Numbers(IterableDataset[int]):
    """Worker w of k yields w, w + k, … below ``n``, each after ``hook``."""

    def __init__(self, n: int, hook: Hook = nothing, seconds: float = 0.0) -> None:
        self.n, self.hook, self.seconds = n, hook, seconds

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, self.n, step):
            self.hook(number)
            if self.seconds:
                time.sleep(self.seconds)
            yield number


class StatefulNumbers(Numbers):
    """The same, following torchdata's convention: the dataset knows where it stands, and counts what it read."""

    def __init__(self, n: int, hook: Hook = nothing) -> None:
        super().__init__(n, hook)
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        while start + self.position * step < self.n:
            number = start + self.position * step
            self.hook(number)
            time.sleep(self.seconds)
            self.position += 1
            yield number
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class StatefulIterator:
    """Counts up; knows where it stands."""

    def __init__(self, start: int, step: int, numbers: Numbers) -> None:
        self.next, self.step, self.numbers = start, step, numbers

    def __iter__(self) -> "StatefulIterator":
        return self

    def __next__(self) -> int:
        if self.next >= self.numbers.n:
            raise StopIteration
        number, self.next = self.next, self.next + self.step
        self.numbers.hook(number)
        time.sleep(self.numbers.seconds)
        return number

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class StatefulIterators(Numbers):
    """A dataset whose iterators are stateful."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return StatefulIterator(start, step, self)


class FailsOnce(Numbers):
    """Its iterators go on after the error that one item is."""

    def __init__(self, n: int, at: int, hook: Hook = nothing) -> None:
        super().__init__(n, hook)
        self.at = at

    def __iter__(self) -> Iterator[int]:
        return FailingIterator(self)


class FailingIterator:
    """Counts up; one number is an error."""

    def __init__(self, numbers: FailsOnce) -> None:
        self.next, self.numbers = 0, numbers

    def __iter__(self) -> "FailingIterator":
        return self

    def __next__(self) -> int:
        if self.next == self.numbers.n:
            raise StopIteration
        number, self.next = self.next, self.next + 1
        self.numbers.hook(number)
        if number == self.numbers.at:
            raise ValueError("bad item")
        return number


class Once:
    """A hook that kills its process at one index, the first time in any process."""

    def __init__(self, marker: Path, at: int) -> None:
        self.marker, self.at = marker, at

    def __call__(self, index: int) -> None:
        if index == self.at and first(self.marker):
            os.kill(os.getpid(), signal.SIGKILL)


class Always:
    """A hook that kills its process at one index, every time."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, index: int) -> None:
        if index == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Count:
    """A hook that leaves one byte per call in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __call__(self, index: int) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")

    def calls(self) -> int:
        return self.path.stat().st_size


class Raises:
    """A hook that raises what the factory makes, at some indices."""

    def __init__(self, error: Callable[[], BaseException], *at: int) -> None:
        self.error, self.at = error, set(at)

    def __call__(self, index: int) -> None:
        if index in self.at:
            raise self.error()


def first(marker: Path) -> bool:
    """Whether this is the first call with this marker in any process."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def listed(batch: list[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A collate_fn for tensors of any shape."""
    return torch.tensor([index for index, _ in batch]), [tensor for _, tensor in batch]


def padded(batch: list[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate_fn that pads with NaN."""
    tensors = [tensor for _, tensor in batch]
    return torch.tensor([index for index, _ in batch]), torch.nn.utils.rnn.pad_sequence(
        tensors, batch_first=True, padding_value=float("nan")
    )


def wrapped(batch: list[Any]) -> Any:
    """A collate_fn that uses torch's."""
    return default_collate(batch)


def noisy(batch: list[Any]) -> Any:
    """A collate_fn that draws."""
    return default_collate(batch), torch.rand(2), random.random(), np.random.rand()


class KillingCollate:
    """A collate_fn that kills its process: the first time in any process, or (no marker) every time."""

    def __init__(self, marker: Path | None, at: int) -> None:
        self.marker, self.at = marker, at

    def __call__(self, batch: list[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        due = any(index == self.at for index, _ in batch)
        if due and (self.marker is None or first(self.marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        return listed(batch)
