"""Helpers shared by the parity tests: the class under test, processes, bounded waits, exact comparison."""

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest
import torch
import torch.utils.data

ROOT = Path(__file__).parents[2]


def resolve(name: str) -> type[torch.utils.data.DataLoader]:
    """The loader class of a parameter id; headrace is imported only when asked for."""
    if name == "torch":
        return torch.utils.data.DataLoader
    import headrace

    return headrace.DataLoader


class raises:  # noqa: N801
    """Like ``pytest.raises``, but keeps no frame of the traceback, and so no iterator, alive.

    An iterator that only the cycle collector finds takes torch five seconds to end.
    """

    value: BaseException

    def __init__(self, expected: type[BaseException] | tuple[type[BaseException], ...], match: str = "") -> None:
        self.expected = expected
        self.match = match

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            pytest.fail(f"did not raise {self.expected}")
        if not isinstance(error, self.expected):
            return False
        traceback.clear_frames(trace)
        self.value = error.with_traceback(None)
        assert re.search(self.match, str(error)), str(error)
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> bool:
    """Poll until the condition holds; False when it did not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def children() -> set[int]:
    """Process ids of the living descendants of this process."""
    return {p.pid for p in psutil.Process().children(recursive=True) if alive(p)}


def alive(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie that only waits for its reaper does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def program(name: str, loader: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """One of ``programs.py`` in a fresh interpreter and a session of its own, which ends with the block."""
    command = [sys.executable, "-W", "error", "-m", "tests.parity.programs", name, loader, *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as started:
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def samples(batches: Iterable[Any]) -> list[Any]:
    """The samples of all batches in order of arrival, as Python values."""
    return [value for batch in batches for value in batch.tolist()]


def lists(batches: Iterable[torch.Tensor]) -> list[Any]:
    """Every batch as a Python list."""
    return [batch.tolist() for batch in batches]


def draw(generator: torch.Generator | None = None) -> int:
    """One int64 from the generator, the way a loader draws its base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def assert_same(actual: Any, expected: Any) -> None:
    """Same structure, same types, same bits."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        left, right = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (actual, expected))
        assert torch.equal(left, right)
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_same(left, right)
    else:
        assert actual == expected
