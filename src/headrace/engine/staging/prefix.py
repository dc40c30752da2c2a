"""The part of a pipeline that always gives the same, which is what a cache can keep for more than one epoch."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from headrace.engine.staging.lists import steps

MARK = "__headrace_deterministic__"
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
        setattr(self, MARK, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operation(*args, **kwargs)


def deterministic(operation: _F) -> _F:
    """Say that an operation of one's own always gives the same for the same input; usable as a decorator.

    A class marked so marks all its objects. What is returned stands for ``operation``, and is it where possible.
    """
    try:
        setattr(operation, MARK, True)
    except (AttributeError, TypeError):  # a built-in function, a bound method
        return _Marked(operation)  # type: ignore[return-value]  # called alike
    return operation


def is_deterministic(operation: Any) -> bool:
    """Whether an operation is known, or was said, to be deterministic. Unknown ones count as random."""
    if getattr(operation, MARK, False):
        return True
    kind = type(operation)
    return kind.__name__ in KNOWN and kind.__module__.startswith("torchvision.transforms.")


class Parts(NamedTuple):
    """The operations of a pipeline: those whose result is kept, and those that follow."""

    kept: tuple[Any, ...]
    rest: tuple[Any, ...]
    random: bool
    """Whether anything in the rest is."""


def cut(transform: Any) -> Parts:
    """Cut a pipeline at the end of its deterministic prefix, or before what would make floats of bytes.

    Pictures are kept as bytes: as floats they take four times the memory, and making floats is cheap.
    """
    operations = tuple(steps(transform))
    at = 0
    while at < len(operations) and is_deterministic(operations[at]) and not _enlarges(operations[at]):
        at += 1
    rest = operations[at:]
    return Parts(operations[:at], rest, not all(map(is_deterministic, rest)))


def _enlarges(operation: Any) -> bool:
    name = type(operation).__name__
    if getattr(operation, MARK, False):
        return False
    wanted = getattr(operation, "dtype", None)
    if name in {"ConvertImageDtype", "ToDtype"}:
        return not isinstance(wanted, torch.dtype) or wanted.is_floating_point
    return name in _ENLARGING


def apply(operations: tuple[Any, ...], value: Any) -> Any:
    """One after the other."""
    for operation in operations:
        value = operation(value)
    return value
