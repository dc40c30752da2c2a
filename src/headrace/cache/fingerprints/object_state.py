"""The state that an object holds, so that two of a class can be told apart: attributes and slots, or what it would
pickle.
"""

import copyreg
import functools
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import CacheError

MARK = "__headrace_deterministic__"
HOW = (
    "give the object that holds it a method `cache_fingerprint()` that returns a text or numbers to tell it by, or, if "
    "it is an operation, mark that with `headrace.deterministic(operation, version=...)`"
)


def title(kind: type) -> str:
    """A class's full name."""
    return f"{kind.__module__}.{kind.__qualname__}"


class DeterministicMark:
    """A user's statement about an operation, in an attribute of it. It also says of which operation, for
    ``functools.wraps`` copies attributes to functions of which it was not said.
    """

    def __init__(self, of: Any, version: str | int | None) -> None:
        self.of, self.version = of, version


def marked(value: Any) -> DeterministicMark | None:
    """The mark of a thing, or of its class; not of one that the class derives from, which it need not do as."""
    bare = value.__func__ if isinstance(value, types.MethodType) else value
    for each in (bare, type(bare)):
        found = getattr(each, "__dict__", {}).get(MARK)
        if isinstance(found, DeterministicMark) and found.of is each:
            return found
    return None


def refused(value: Any, path: str, why: str = "a cache cannot tell whether it changed") -> CacheError:
    """The error for a value that has no fingerprint."""
    return CacheError(f"{path} is a {title(type(value))}, and {why}: {HOW}")


def of(value: Any, path: str) -> tuple[Any, dict[str, Any]]:
    """The way an object is made and its attributes, as pickle would have it; ``CacheError`` where that cannot be
    read.
    """
    registered = copyreg.dispatch_table.get(type(value))  # of compiled patterns, say
    try:
        found = registered(value) if registered is not None else value.__reduce_ex__(4)
    except CacheError:
        raise
    except Exception as error:
        raise refused(value, path) from error
    if isinstance(found, str):
        return found, {}
    make, arguments, *rest = found
    held = rest[0] if rest else None
    if isinstance(held, tuple) and len(held) == 2 and isinstance(held[1], dict):  # with slots
        held = {**(held[0] or {}), **held[1]}
    if isinstance(held, dict):
        attributes, held = _lasting(type(value), held), None
    else:
        attributes = {}
    return [make, arguments, held, *(list(each) for each in rest[1:3] if each is not None)], attributes


def held(value: Any) -> dict[str, Any]:
    """The attributes of a dataset, slots included: as it would be pickled, where it says how."""
    kind = type(value)
    if getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None):
        found = value.__getstate__()
        if isinstance(found, dict):
            return _lasting(kind, found)
    slots = {name: getattr(value, name) for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)}
    return _lasting(kind, {**getattr(value, "__dict__", {}), **slots})


def _slots(kind: type) -> list[str]:
    found = vars(kind).get("__slots__", ())
    names = [found] if isinstance(found, str) else list(found)
    private = f"_{kind.__name__.lstrip('_')}"
    return [
        private + name if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in {"__dict__", "__weakref__"}
    ]


def _lasting(kind: type, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes without what follows from the rest, values of cached properties, and what is said of the
    object.
    """
    aside = {
        name
        for base in kind.__mro__
        for name, each in vars(base).items()
        if isinstance(each, functools.cached_property)
    }
    return {name: value for name, value in attributes.items() if name not in aside and name != MARK}


def array_of(value: Any) -> tuple[Any, ...] | None:
    """The facts of an array or a tensor, and its memory; None for anything else."""
    if isinstance(value, np.memmap) and value.mode != "c":
        return _mapped(value)
    torch = sys.modules.get("torch")  # this layer does without it, and who has tensors has it
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value, torch)
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return None
    facts = (value.dtype.descr, value.shape, getattr(value, "mask", None) is not None)
    return facts, *([_bytes(np.ma.getmaskarray(value))] if facts[2] else ()), _bytes(np.asarray(value))


def beside(value: Any) -> dict[str, Any]:
    """The attributes that an array of a derived class holds beside its content."""
    if isinstance(value, np.ma.MaskedArray):
        return {"fill_value": value.fill_value}
    derived = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
    return dict(getattr(value, "__dict__", {})) if derived else {}


def _tensor(value: Any, torch: Any) -> tuple[Any, ...] | None:
    if value.is_nested or str(value.layout) != "torch.strided" or value.is_quantized or str(value.device) != "cpu":
        return None
    flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
    flat = flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)
    content = flat.view(torch.uint8).numpy() if flat.numel() else b""
    facts = {name: each for name, each in vars(value).items() if not name.startswith("__")}
    return (str(value.dtype), tuple(value.shape), repr(facts)), content


def _bytes(value: Any) -> Any:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.itemsize and value.size else b""


def _mapped(value: Any) -> tuple[Any, ...] | None:
    """A file that is mapped is told by its size and time: it may be larger than memory."""
    if value.filename is None:
        return (value.dtype.descr, value.shape), _bytes(np.asarray(value))
    found = Path(value.filename).stat()
    base = np.frombuffer(value._mmap, np.uint8).__array_interface__["data"][0]  # noqa: SLF001  (a view has its file's)
    place = value.__array_interface__["data"][0] - base
    told = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return (value.dtype.descr, value.shape, value.strides, place, *told), b""
