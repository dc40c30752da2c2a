"""Batches as users build them: containers of containers, with tensors in them."""

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

Change = Callable[[torch.Tensor], torch.Tensor]
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), type(...)})


def tensors(value: Any, *, pinning: bool = False) -> list[torch.Tensor]:
    """The tensors that ``mapped`` changes, in its order."""
    found: list[torch.Tensor] = []
    _collect(value, found, pinning=pinning)
    return found


def _collect(value: Any, found: list[torch.Tensor], *, pinning: bool) -> None:
    kind = type(value)
    if kind is torch.Tensor or isinstance(value, torch.Tensor):
        found.append(value)
    elif kind is list or kind is tuple:  # asking whether it is a sequence costs more than all the rest
        for item in value:
            _collect(item, found, pinning=pinning)
    elif kind in _PLAIN or isinstance(value, (str, bytes)) or (pinning and hasattr(value, "pin_memory")):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found, pinning=pinning)
    elif isinstance(value, Sequence):
        for item in value:
            _collect(item, found, pinning=pinning)


def mapped(value: Any, change: Change, *, pinning: bool = False) -> Any:  # noqa: PLR0911  (one per kind)
    """``value`` with its tensors changed. Containers are rebuilt as ``torch.utils.data`` does when it pins a batch.

    ``pinning``: whatever has a ``pin_memory`` method of its own is pinned by it.
    """
    kind = type(value)
    if kind is torch.Tensor or isinstance(value, torch.Tensor):
        return change(value)
    if kind is list:
        return [mapped(item, change, pinning=pinning) for item in value]
    if kind is tuple:
        return tuple([mapped(item, change, pinning=pinning) for item in value])
    if kind in _PLAIN:  # keys of samples, say: as many as a batch has
        return value
    if pinning and hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return _mapping(value, {key: mapped(item, change, pinning=pinning) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return _sequence(value, [mapped(item, change, pinning=pinning) for item in value])
    return value


def _mapping(value: Mapping[Any, Any], pairs: dict[Any, Any]) -> Any:
    kind: Any = type(value)
    if kind is dict:
        return pairs
    try:
        if not isinstance(value, MutableMapping):
            return kind(pairs)
        clone = copy.copy(value)  # it may have more to it than its items
        clone.update(pairs)
    except TypeError:
        return pairs
    return clone


def _sequence(value: Sequence[Any], items: list[Any]) -> Any:
    kind: Any = type(value)
    if isinstance(value, tuple):
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    try:
        if not isinstance(value, MutableSequence):
            return kind(items)
        clone = copy.copy(value)
        for i, item in enumerate(items):
            clone[i] = item
    except TypeError:
        return items
    return clone
