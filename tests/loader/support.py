"""Kinds of loading that every guarantee is checked in, and a killer."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psutil
import torch

import headrace
from headrace.engine.worker.startup import forking
from tests.loader.data import BulkPairs, Hook, Pairs, content, fixed, listed, nothing, padded
from tests.parity.support import alive

Rows = list[tuple[int, torch.Tensor]]
SIZE = 5
PATIENCE = 240
"""Seconds after which a batch that does not come is an error, so that one hang does not end the whole session."""

NAMING_S = 20.0
"""How long a new process may take until it runs."""


def _stacked(batch: Any) -> Rows:
    return list(zip(batch[0].tolist(), batch[1], strict=True))


def _unpadded(batch: Any) -> Rows:
    return [(index, row[~row.isnan()]) for index, row in _stacked(batch)]


def _single(sample: Any) -> Rows:
    index, tensor = sample
    return [(int(index), tensor)]


@dataclass(frozen=True)
class Mode:
    """One way of making batches, and how to read them."""

    rows: Callable[[Any], Rows]
    make: Callable[[int], torch.Tensor] = fixed
    dataset: type[Pairs] = Pairs
    options: dict[str, Any] = field(default_factory=dict)
    batches: bool = False
    """A batch sampler composes the batches."""

    def loader(self, n: int, hook: Hook = nothing, seconds: float = 0.0, **options: Any) -> headrace.DataLoader[Any]:
        arguments = {"num_workers": 2, "timeout": PATIENCE, **self.options, **options}
        if self.batches:
            arguments["batch_sampler"] = [list(range(n))[at : at + SIZE] for at in range(0, n, SIZE)]
        return headrace.DataLoader(self.dataset(n, self.make, hook, seconds), **arguments)

    def check(self, rows: Rows, expected: list[int], *, ordered: bool) -> None:
        """Each index once, in order if asked, with its own contents."""
        indices = [index for index, _ in rows]
        assert (indices if ordered else sorted(indices)) == expected
        for index, tensor in rows:
            assert torch.equal(tensor, self.make(index)), index


MODES = {
    "default collate": Mode(_stacked, options={"batch_size": SIZE}),
    "custom collate": Mode(_stacked, options={"batch_size": SIZE, "collate_fn": listed}),
    "variable shapes": Mode(_unpadded, content, options={"batch_size": SIZE, "collate_fn": padded}),
    "no batches": Mode(_single, content, options={"batch_size": None}),
    "batch sampler": Mode(_stacked, batches=True),
    "bulk": Mode(_stacked, dataset=BulkPairs, options={"batch_size": SIZE}),
}


Workers = Callable[[], list[psutil.Process]]


def forked() -> list[psutil.Process]:
    """The living workers that were forked from this process, or from a forker of it."""
    return [child for child in _descendants() if not _is_forker(child)]


def forkers() -> list[psutil.Process]:
    """The living processes that later workers are forked from."""
    return [child for child in _descendants() if _is_forker(child)]


def _is_forker(child: psutil.Process) -> bool:
    # A worker of the forker has its name before it gives itself another.
    return _name(child) == forking.NAME and _parent(child) == os.getpid()


def _descendants() -> list[psutil.Process]:
    """The living ones that were forked, once each has the name it gives itself when it first runs.

    Until then a forker looks like a worker. Whoever never takes a name is taken for a worker in the end.
    """
    us = psutil.Process()
    own, name = us.cmdline(), us.name()
    deadline = time.monotonic() + NAMING_S
    while True:
        found = [child for child in us.children(recursive=True) if alive(child) and _command(child) == own]
        if time.monotonic() > deadline or not any(_name(child) == name for child in found):
            return found
        time.sleep(0.001)


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return -1


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> bool:
    """SIGKILL; False when it was gone."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Killer:
    """A thread that kills a random worker some moment after enough was delivered since it last did.

    Enough is whatever could have been under way then: a sample that loses its worker twice counts as the cause. The
    first time the caller waits for it, so that one death is certain; later ones come while the caller goes on.
    """

    AHEAD = 30

    def __init__(self, workers: Workers, times: int, seed: int = 0) -> None:
        self.killed = 0
        self._workers, self._times, self._random = workers, times, random.Random(seed)
        self._delivered: set[int] = set()
        self._enough = 6
        self._due, self._began, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def _run(self) -> None:
        while self.killed < self._times and not self._over.is_set():
            if not self._due.wait(0.1):
                continue
            if self._over.wait(self._random.random() * 0.004):
                return
            found = self._workers()
            if found and kill(self._random.choice(found)):
                self.killed += 1
            self._due.clear()
            self._began.set()

    def progress(self, indices: list[int]) -> None:
        """These were delivered."""
        self._delivered.update(indices)
        if not self._due.is_set() and self._delivered.issuperset(range(self._enough)):
            self._enough = max(self._delivered) + self.AHEAD
            self._due.set()
            assert self._began.wait(240)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def outcomes(iterator: Any) -> tuple[list[Any], list[BaseException]]:
    """Every batch and every error until the end of the epoch."""
    batches: list[Any] = []
    errors: list[BaseException] = []
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches, errors
        except Exception as error:
            if "timed out" in str(error):
                raise
            errors.append(error.with_traceback(None))
