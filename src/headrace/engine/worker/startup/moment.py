"""The user's objects as they are at one moment, for all the workers that are started from then on.

A worker that is spawned gets a pickle of them. Were it taken anew for each, one that is started in the middle of an
epoch would make samples of another dataset than the others, if that was changed meanwhile.
"""

import io
import pickle
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import BuiltinMethodType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any

import torch

from headrace.engine.worker.startup.job import Task

SMALL = 32 << 10
"""Bytes of tensors that are copied, in all: a pipe holds so much, and a trainer that writes more waits until a worker
reads, which has to import torch first. The others are put into shared memory, as torch does.
"""
_PURE = frozenset({MethodType, BuiltinMethodType, MethodDescriptorType, WrapperDescriptorType, partial})
"""Kinds that multiprocessing only says how to pickle."""
_registered: dict[Any, Any] = vars(ForkingPickler)["_extra_reducers"]
_handed: list[list[Any]] = []
"""What is handed over beside the pickles that are being read."""


class TaskAtMoment:
    """The stand-in for a task where a process is told of it: arrives as the task, as it was when this was made."""

    def __init__(self, task: Task) -> None:
        """Raises what pickling raises. Takes as much memory as the pickle does, as long as workers may be started."""
        taken = io.BytesIO()
        pickler = _MomentPickler(taken)
        pickler.dump((task.dataset, task.collate_fn, task.worker_init_fn))
        self._taken, self._live = taken.getvalue(), pickler.live
        self._rest = replace(task, dataset=None, collate_fn=_nothing, worker_init_fn=None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _task, (self._rest, self._taken, self._live)


class _MomentPickler(ForkingPickler):
    """Leaves aside what processes share by its nature, and what only a process that is being started can be given."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.live: list[Any] = []
        self._room = SMALL

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PURE or not (kind in _registered or f"{kind.__module__}".startswith("multiprocessing.")):
            return NotImplemented
        if kind in {torch.Tensor, torch.nn.Parameter} and _is_alone(value) and self._fits(value):
            content = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
            return _copied, (kind, content, value.dtype, tuple(value.shape), value.requires_grad)
        self.live.append(value)
        return _handed_over, (len(self.live) - 1,)

    def _fits(self, value: torch.Tensor) -> bool:
        size = value.untyped_storage().nbytes()
        if size <= self._room:
            self._room -= size
            return True
        return False


def _is_alone(value: torch.Tensor) -> bool:
    """True if the tensor is memory that nobody shares yet."""
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or not value.is_leaf:
        return False
    return value.is_contiguous() and not (value.is_conj() or value.is_neg() or value.untyped_storage().is_shared())


def _copied(kind: Any, content: bytes, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Any:
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    found = flat.reshape(shape)
    return found.requires_grad_(requires_grad) if kind is torch.Tensor else kind(found, requires_grad)


def _nothing(_: Any) -> None:
    """The placeholder for the user's ``collate_fn``."""


def _task(rest: Task, taken: bytes, live: list[Any]) -> Task:
    _handed.append(live)
    try:
        dataset, collate_fn, init = pickle.loads(taken)  # noqa: S301  (from our own parent)
    finally:
        _handed.pop()
    return replace(rest, dataset=dataset, collate_fn=collate_fn, worker_init_fn=init)


def _handed_over(number: int) -> Any:
    return _handed[-1][number]
