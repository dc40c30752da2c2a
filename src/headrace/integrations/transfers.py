"""Time that a program spends copying its batches to a device itself, in ``.to()`` and ``.cuda()``."""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Note = Callable[[int, int, int], None]
"""Is given the bytes of a copy, its start and its length."""
METHODS = ("to", "cuda")


class _Here(threading.local):
    note: Note | None = None


_here = _Here()
_lock = threading.Lock()
_watching = 0
_before: dict[str, Any] = {}
"""What the class itself had under the names; None where it inherits."""


@contextmanager
def watched() -> Iterator[None]:
    """A block in which copies can be noted; several may be open, in any thread. Tensors are torch's own again
    afterwards.
    """
    global _watching  # noqa: PLW0603  (torch's class is as global)
    kind: Any = torch.Tensor
    with _lock:
        _watching += 1
        if _watching == 1:
            for name in METHODS:
                _before[name] = kind.__dict__.get(name)
                setattr(kind, name, _timed(getattr(kind, name)))
    try:
        yield
    finally:
        with _lock:
            _watching -= 1
            if not _watching:
                for name in METHODS:
                    own = _before.pop(name)
                    # To set what is inherited would hide whatever somebody exchanges in the base class later.
                    delattr(kind, name) if own is None else setattr(kind, name, own)


@contextmanager
def noted(note: Note) -> Iterator[None]:
    """A block in which this thread's copies from the host to a device are told: to the one that was opened last."""
    _here.note = note
    try:
        yield
    finally:
        if _here.note is note:  # loaders that are iterated together close in any order
            _here.note = None


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        note = _here.note
        if note is None or self.device.type != "cpu":
            return method(self, *args, **kwargs)
        _here.note = None  # whatever it calls is part of it
        try:
            if _waits(self, method.__name__, args, kwargs):
                # It would wait for the device's earlier work, and that is no transfer.
                torch.cuda.current_stream().synchronize()
            start = time.monotonic_ns()
            there = method(self, *args, **kwargs)
            elapsed = time.monotonic_ns() - start
        finally:
            _here.note = note
        if isinstance(there, torch.Tensor) and there.device.type != "cpu":
            note(self.numel() * self.element_size(), start, elapsed)
        return there

    return timed


def _waits(tensor: torch.Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a copy to a CUDA device that the host waits for; false for one that runs beside it."""
    given = [*args, *kwargs.values()]
    cuda: Any = torch.cuda  # its own annotations are incomplete
    if not cuda.is_initialized() or not (name == "cuda" or any(map(_is_cuda, given))):
        return False
    beside = kwargs.get("non_blocking", any(value is True for value in args))
    return not (beside and tensor.is_pinned())


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return value.startswith("cuda") if isinstance(value, str) else type(value) is int
