"""Lists of operations, as torch and torchvision have them: what each consists of.

Only their own classes are opened. What a class of the same name, or one derived from these, does with its list is its
own affair.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

HOLDERS = ("transform", "target_transform", "transforms")


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
    if kind is torch.nn.Sequential:
        modules = target._modules  # noqa: SLF001  (what iterating over it gives, by name)
        return [Member(modules, key, module) for key, module in modules.items()]
    if known(kind, "Compose", "torchvision.transforms.transforms", "torchvision.transforms.v2"):
        return [Member(target, position, member) for position, member in enumerate(target.transforms)]
    if _pair(kind):
        keys = [key for key in HOLDERS if callable(getattr(target, key, None))]
        return [Member(target, key, getattr(target, key)) for key in keys]
    return None


def known(kind: type, name: str, *modules: str) -> bool:
    """Whether a class is the one of that name in one of these modules. Whoever has an object of it has the module."""
    return kind.__name__ == name and any(getattr(sys.modules.get(each), name, None) is kind for each in modules)


def _pair(kind: type) -> bool:
    """Torchvision's pair of transform and target_transform."""
    return known(kind, "StandardTransform", "torchvision.datasets.vision")


def steps(transform: Any) -> Iterator[Any]:
    """The operations of a transform, one after the other, lists within lists opened; nothing for None."""
    if transform is None:
        return
    listed = members(transform)
    if listed is None or _pair(type(transform)):  # two at once are no sequence
        yield transform
        return
    for member in listed:
        yield from steps(member.operation)
