"""The proof that a dataset's samples are what its stages make, by its class and the object as they are now.

`dataset[index]` may be replaced by `fetch`, `decode` and `augment`, or by what makes a sample of its row, only where
`__getitem__` is known to say just that: it is one of this package's own, or its code is that composition. A class that
overrides it is refused where stages are needed, and simply called elsewhere.
"""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

from torch.utils.data import Dataset

STAGES = ("fetch", "decode", "augment")
COMPOSITION = "return self.augment(self.decode(self.fetch(index)))"

_F = TypeVar("_F", bound=Callable[..., Any])
_known: set[Any] = set()
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
"""Of code with `*args` or `**kwargs`, or that makes generators or coroutines."""


def composed(method: _F) -> _F:
    """A decorator for methods of this package that call the stages as they are, and nothing else."""
    _known.add(method)
    return method


def _nested(self: Any, index: Any) -> Any:
    return self.augment(self.decode(self.fetch(index)))


def _step_by_step(self: Any, index: Any) -> Any:
    encoded = self.fetch(index)
    decoded = self.decode(encoded)
    return self.augment(decoded)


def _to_the_last(self: Any, index: Any) -> Any:
    encoded = self.fetch(index)
    decoded = self.decode(encoded)
    sample = self.augment(decoded)
    return sample  # noqa: RET504  (as some write it)


def _shape(code: CodeType) -> tuple[Any, ...]:
    """All of a function's code but its names for variables, its lines and its docstring."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals)
    return (*counts, code.co_flags & _FLAGS, code.co_names, code.co_code, code.co_freevars, code.co_cellvars)


_SHAPES = {_shape(each.__code__) for each in (_nested, _step_by_step, _to_the_last)}


def place(dataset: Any, name: str) -> int:
    """The position at which a name is found: -1 for the object itself, else the number of its class in the method
    resolution order. It is past the last class for a name that is nowhere. Python asks the class alone for
    special methods.
    """
    if name in getattr(dataset, "__dict__", {}) and not name.startswith("__"):
        return -1
    order = type(dataset).__mro__
    return next((at for at, each in enumerate(order) if name in vars(each)), len(order))


def has_stages(dataset: Any) -> bool:
    """True if the dataset's class has all three stages."""
    return all(callable(getattr(type(dataset), name, None)) for name in STAGES)


def in_bulk(dataset: Any) -> Callable[[list[Any]], Any] | None:
    """The dataset's `__getitems__`, as torch asks for it; None where it has none, or has switched it off."""
    return getattr(dataset, "__getitems__", None) or None


def bypassed(dataset: Any) -> str | None:
    """The method that running the three stages would not call; None where they are what samples are made by."""
    if in_bulk(dataset) is not None:
        return "__getitems__"
    getter = _written(dataset, "__getitem__")
    if getter is None or getter is Dataset.__getitem__:  # nobody wrote one
        return None
    if not isinstance(getter, FunctionType):
        return "__getitem__"
    is_proven = getter in _known or (_shape(getter.__code__) in _SHAPES and not getter.__defaults__)
    return None if is_proven else "__getitem__"


def is_ours(dataset: Any, method: str = "__getitem__") -> bool:
    """True if that method is one of this package's that call the stages, and nothing else."""
    return _written(dataset, method) in _known


def refusal(dataset: Any, method: str, who: str) -> str:
    """The error message for stages that would bypass a method, with what to do about it. ``who`` would not call it."""
    name = type(dataset).__name__
    if method == "__getitems__":
        return (
            f"{name} has `__getitems__`, which {who} would not call: samples are made one by one, in stages. Where "
            "these give the same, say `__getitems__ = None` in its class"
        )
    return (
        f"{name} has a `__getitem__` that {who} would not call: samples are made by `fetch`, `decode` and `augment`. "
        "Do there what it does (in `augment`, where it is to be done anew each time), and leave it out, or let it say "
        f"no more than `{COMPOSITION}`"
    )


def speaks_of_rows(dataset: Any) -> bool:
    """True if `made_of(index, row)` gives what `dataset[index]` does: nothing it stands for is overridden later."""
    if is_ours(dataset, "made_of"):  # it calls all stages but the first
        return bypassed(dataset) is None and _speaks_for(dataset, "made_of", ("__getitem__", "fetch"))
    return _speaks_for(dataset, "made_of", ("__getitem__", *STAGES))


def speaks_of_encoded(dataset: Any) -> bool:
    """True if `encoded_of(index, row)` gives what `fetch` does."""
    return callable(getattr(dataset, "encoded_of", None)) and _speaks_for(dataset, "encoded_of", ("fetch",))


def speaks_of_pixels(dataset: Any) -> str | None:
    """The stage that is overridden later than `on_device`, which hence says nothing of it; None where it speaks."""
    return next((name for name in ("decode", "augment") if not _speaks_for(dataset, "on_device", (name,))), None)


def _speaks_for(dataset: Any, method: str, others: tuple[str, ...]) -> bool:
    """True if no class overrides one of ``others`` later than ``method``, which would then say nothing of them."""
    at = place(dataset, method)
    return all(at <= place(dataset, name) for name in others)


def _written(dataset: Any, name: str) -> Any:
    order, at = type(dataset).__mro__, place(dataset, name)
    return vars(order[at])[name] if 0 <= at < len(order) else None
