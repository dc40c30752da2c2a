"""Lists of operations, as torch's and other people's libraries write them: what each consists of."""

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
    if isinstance(target, torch.nn.Sequential) and kind.forward is torch.nn.Sequential.forward:
        modules = target._modules  # noqa: SLF001  (what iterating over it gives, by name)
        return [Member(modules, key, module) for key, module in modules.items()]
    listed = getattr(target, "transforms", None)
    if "Compose" in kind.__name__ and isinstance(listed, (list, tuple)):
        return [Member(target, position, member) for position, member in enumerate(listed)]
    if kind.__name__ == "StandardTransform":  # torchvision's pair of transform and target_transform
        keys = [key for key in HOLDERS if callable(getattr(target, key, None))]
        return [Member(target, key, getattr(target, key)) for key in keys]
    return None


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
