"""The part of a pipeline that always gives the same, which is what a cache can keep for more than one epoch."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar, cast, overload

import torch

from headrace.cache.fingerprints.object_state import MARK, DeterministicMark, marked
from headrace.staging.lists import is_torchvision, steps
from headrace.staging.watching import PIPELINES, Watched

KNOWN = frozenset(
    {
        *("CenterCrop", "ConvertBoundingBoxFormat", "ConvertImageDtype", "FiveCrop", "Grayscale", "Identity"),
        *("LinearTransformation", "Normalize", "Pad", "PILToTensor", "Resize", "RGB", "TenCrop", "ToDtype", "ToImage"),
        *("ToPILImage", "ToPureTensor", "ToTensor", "ToVideo", "UniformTemporalSubsample"),
        *("ImageClassification", "ObjectDetection", "OpticalFlow", "SemanticSegmentation", "VideoClassification"),
    }
)
"""Of torchvision, old and new: what has no randomness in it. A class derived from one of these is not known."""
_ENLARGING = frozenset({"ImageClassification", "LinearTransformation", "Normalize", "OpticalFlow", "ToTensor"})
"""Those that make floats of bytes."""

_F = TypeVar("_F", bound=Callable[..., Any])


class _Marked:
    """Stands for an operation that takes no mark of its own."""

    def __init__(self, operation: Callable[..., Any]) -> None:
        self.operation = operation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operation(*args, **kwargs)


@overload
def deterministic(operation: _F, *, version: str | int | None = None) -> _F: ...


@overload
def deterministic(*, version: str | int | None = None) -> Callable[[_F], _F]: ...


def deterministic(operation: _F | None = None, *, version: str | int | None = None) -> _F | Callable[[_F], _F]:
    """Say that an operation of one's own always gives the same for the same input; usable as a decorator.

    A class marked so marks all its objects, and not those of classes derived from it. What is returned stands for
    ``operation``, and is it where possible. ``version`` tells a cache which operation it is, in place of its code and
    all that it holds: another one, another version. It is for operations of which that cannot be told.
    """
    if operation is None:
        return lambda given: deterministic(given, version=version)
    try:
        return _marked(operation, version)
    except (AttributeError, TypeError):  # a built-in function, a bound method
        return _marked(cast("_F", _Marked(operation)), version)  # called alike


def _marked(operation: _F, version: str | int | None) -> _F:
    setattr(operation, MARK, DeterministicMark(operation, version))
    return operation


def is_deterministic(operation: Any) -> bool:
    """True if an operation is known, or was said, to be deterministic. Unknown ones count as random."""
    if marked(operation) is not None:
        return True
    return type(operation).__name__ in KNOWN and is_torchvision(operation)


class PipelineParts(NamedTuple):
    """The operations of a pipeline: those whose result is kept, and those that follow."""

    kept: tuple[Any, ...]
    rest: tuple[Any, ...]
    random: bool
    """Whether anything in the rest is."""


def cut(transform: Any) -> PipelineParts:
    """Cut a pipeline at the end of its deterministic prefix, or before what would make floats of bytes.

    Pictures are kept as bytes: as floats they take four times the memory, and making floats is cheap.
    """
    operations = tuple(steps(transform))
    at = 0
    while at < len(operations) and is_deterministic(operations[at]) and not _enlarges(operations[at]):
        at += 1
    rest = operations[at:]
    return PipelineParts(operations[:at], rest, not all(map(is_deterministic, rest)))


def _enlarges(operation: Any) -> bool:
    name = type(operation).__name__
    if marked(operation) is not None:
        return False
    if name in {"ConvertImageDtype", "ToDtype"}:
        wanted = getattr(operation, "dtype", None)
        return not isinstance(wanted, torch.dtype) or wanted.is_floating_point
    return name in _ENLARGING


def apply(operations: tuple[Any, ...], value: Any, of: Any = None, first: int = 0) -> Any:
    """Apply the operations one after the other. ``of``: the transform of whose steps they are those from number
    ``first`` on, to look at.
    """
    watchers = PIPELINES.watchers(of) if PIPELINES else ()
    if not watchers:
        for operation in operations:
            value = operation(value)
        return value
    with closing(Watched(iter(operations), watchers, first)) as watched:
        for operation in watched:
            value = operation(value)
    return value
