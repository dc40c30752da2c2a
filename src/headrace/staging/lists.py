"""Lists of operations, as torch and torchvision have them: what each consists of.

Only their own classes are opened. What a class of the same name, or one derived from these, does with its list is its
own affair.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

HOLDERS = ("transform", "target_transform", "transforms")

_OPENED = frozenset({"Compose", "Sequential", "StandardTransform"})


class Member(NamedTuple):
    """An operation, and where it stands: ``key`` is a position in the holder's ``transforms``, an attribute of it, or
    a module's name in a dictionary of modules.
    """

    holder: Any
    key: Any
    operation: Any


def members(target: Any) -> list[Member] | None:
    """The operations a list of operations consists of; None when it is an operation itself."""
    kind = type(target)
    if kind.__name__ not in _OPENED or not is_bare(target):
        return None
    if kind is torch.nn.Sequential:
        modules = target._modules  # noqa: SLF001  (what iterating over it gives, by name)
        return [Member(modules, key, module) for key, module in modules.items()]
    if known(kind, "Compose", "torchvision.transforms.transforms", "torchvision.transforms.v2"):
        listed = target.transforms  # another kind of list may give others each time
        return [Member(target, *member) for member in enumerate(listed)] if type(listed) in {list, tuple} else None
    if _pair(kind):
        keys = [key for key in HOLDERS if callable(getattr(target, key, None))]
        return [Member(target, key, getattr(target, key)) for key in keys]
    return None


def known(kind: type, name: str, *modules: str) -> bool:
    """True if a class is the one of that name in one of these modules. Whoever has an object of it has the module."""
    return kind.__name__ == name and any(getattr(sys.modules.get(each), name, None) is kind for each in modules)


def is_torchvision(operation: Any) -> bool:
    """True if the operation is an object of one of torchvision's transforms, and does what that says."""
    kind = type(operation)
    is_known = _torchvision.get(kind)
    if is_known is None:
        module = kind.__module__
        is_known = module.startswith("torchvision.transforms.") and known(kind, kind.__name__, module)
        _torchvision[kind] = is_known
    return is_known and is_bare(operation)


_methods: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()
_torchvision: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_bare(operation: Any) -> bool:
    """True if an object does what its class says: no hook was put on it, and no method replaced on it."""
    held = getattr(operation, "__dict__", None)
    if not held:
        return True
    kind = type(operation)
    methods = _methods.get(kind)
    if methods is None:
        methods = _methods[kind] = frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))
    if not methods.isdisjoint(held):
        return False
    if not isinstance(operation, torch.nn.Module):
        return True
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:  # noqa: SLF001  (nothing else tells)
        return False
    return not (held.get("_forward_hooks") or held.get("_forward_pre_hooks") or held.get("_compiled_call_impl"))


def _pair(kind: type) -> bool:
    """Torchvision's pair of transform and target_transform."""
    return known(kind, "StandardTransform", "torchvision.datasets.vision")


def steps(transform: Any) -> Iterator[Any]:
    """The operations of a transform, one after the other, lists within lists opened; nothing for None."""
    if transform is None:
        return
    listed = members(transform)
    if listed is None or type(transform).__name__ == "StandardTransform":  # two at once are no sequence
        yield transform
        return
    for member in listed:
        yield from steps(member.operation)
