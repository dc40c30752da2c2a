"""Ways to code and values that a name in the code does not lead to: what is reached so cannot be told.

Told by what a name stands for, so that another name for it, or another module that has it, changes nothing. Who hides
the name itself, as in ``getattr(kind, "__sub" + "classes__")``, is not found out.
"""

import sys
import types
from typing import Any, NamedTuple

_EVERYTHING = {
    "builtins": {"eval", "exec", "globals", "__import__"},
    "gc": {"get_objects", "get_referents", "get_referrers"},
    "imp": {"load_module", "load_source"},
    "importlib": {"import_module", "__import__", "reload"},
    "importlib._bootstrap": {"__import__"},
    "inspect": {"currentframe", "getclosurevars", "getinnerframes", "getmodule", "getouterframes", "stack", "trace"},
    "pkgutil": {"resolve_name"},
    "pydoc": {"locate"},
    "runpy": {"run_module", "run_path"},
    "sys": {"modules", "_current_exceptions", "_current_frames", "_getframe", "_getframemodulename"},
}
"""Of modules: what may lead to anything."""
_ATTRIBUTES = frozenset(
    {
        *("__builtins__", "__globals__", "__subclasses__", "exec_module", "load_module"),
        *("ag_frame", "cr_frame", "f_back", "f_builtins", "f_globals", "f_locals", "gi_frame", "tb_frame"),
    }
)
"""Of whatever object: the same."""
_MEMBERS = frozenset(
    {
        *("builtins.dir", "builtins.getattr", "builtins.type", "builtins.vars"),
        *("inspect.getattr_static", "inspect.getmembers", "inspect.getmembers_static"),
        *("operator.attrgetter", "operator.methodcaller"),
    }
)
"""What may lead to any member of an object's class."""
_MEMBERS_BY = frozenset({"__class__", "__dict__", "__getattr__", "__getattribute__"})
"""Attributes that may lead there."""


class Way(NamedTuple):
    """A way to code and values that names do not lead to."""

    name: str
    everywhere: bool
    """It may lead to anything; if not, to any member of an object's class."""


def way(value: Any, attributes: tuple[str, ...] = ()) -> Way | None:
    """The way that a value is, or that attributes of it lead to, one after the other, as far as these are modules."""
    for name in attributes:
        if not isinstance(value, types.ModuleType):
            break
        if (found := _known(value.__name__, name)) is not None:
            return found
        value = vars(value).get(name)
    if isinstance(value, types.ModuleType):
        return Way(f"the whole of {value.__name__}", True) if value.__name__ in _EVERYTHING else None
    if value is sys.modules:
        return Way("sys.modules", True)
    called = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return _known(value.__module__ or "", value.__qualname__) if called else None


def way_of_import(module: str, attributes: tuple[str, ...]) -> Way | None:
    """The same as ``way``, of a module that may not be imported yet."""
    return (_known(module, attributes[0]) if attributes else None) or way(sys.modules.get(module), attributes)


def way_of_names(names: frozenset[str]) -> Way | None:
    """The way that attributes of whatever object lead to, or any object of such a name."""
    if everywhere := names & _ATTRIBUTES:
        return Way(min(everywhere), True)
    return Way(min(members), False) if (members := names & _MEMBERS_BY) else None


def _known(module: str, name: str) -> Way | None:
    whole = f"{module}.{name}"
    everywhere = name in _EVERYTHING.get(module, ())
    return Way(whole, everywhere) if everywhere or whole in _MEMBERS else None
