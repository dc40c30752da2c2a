"""The operations a dataset's samples go through, where it says so: found, and noted while they run.

Known are the members of a ``Compose`` or ``nn.Sequential`` under a dataset's ``transform``, ``target_transform`` or
``transforms``, whatever else stands there as one operation, the ``loader`` of an image folder, and the stages
``fetch``, ``decode`` and ``augment`` of a staged dataset; also in datasets within datasets. Objects stay what they are:
an operation's class is replaced by a subclass of the same name that also looks at the clock, functions by objects that
pass everything on.
"""

import os
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from headrace.engine.staging.composition import STAGES
from headrace.engine.staging.lists import HOLDERS, members
from headrace.engine.staging.stages import Standing
from headrace.engine.worker.standins import Passing, Undo, exchanged
from headrace.trace.probe import OFF, Probe

MOST = 64
"""Operations of one dataset that are told apart."""

_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


class Place(NamedTuple):
    """Where an operation stands: an attribute, a member of a list of operations, or a method of the dataset itself."""

    name: str
    holder: Any
    key: Any
    """Attribute, method or module's name, or a position in the holder's ``transforms``."""
    reads: bool = False
    """It is where the encoded sample comes from."""

    @property
    def is_stage(self) -> bool:
        """Whether it is a method of a staged dataset."""
        return self.name == self.key and self.key in STAGES

    def get(self) -> Any:
        if isinstance(self.key, int):
            return self.holder.transforms[self.key]
        return self.holder[self.key] if isinstance(self.holder, dict) else getattr(self.holder, self.key)

    def put(self, value: Any) -> None:
        if isinstance(self.key, int):
            members = self.holder.transforms
            if isinstance(members, list):
                members[self.key] = value
            else:
                self.holder.transforms = (*members[: self.key], value, *members[self.key + 1 :])
        elif isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


class Operations:
    """The operations of one dataset; ``names`` in the order in which they were found, numbered from 1 on."""

    def __init__(self, dataset: Any) -> None:
        """Looks, changes nothing."""
        self._places: list[Place] = []
        self._seen: set[int] = set()
        for place in _of_dataset(dataset, 0):
            self._add(place)
        self.names = _told_apart([place.name for place in self._places])

    def _add(self, place: Place) -> None:
        if place.is_stage:
            self._places.append(place)
            return
        target = place.get()
        if target is None or not callable(target) or id(target) in self._seen or len(self._places) >= MOST:
            return
        if not isinstance(target, _PLAIN):  # an object is noted wherever it stands, a function where it does
            self._seen.add(id(target))
        members = _members(target)
        if members is None:
            self._places.append(place)
            return
        for member in members:
            self._add(member)

    def install(self, probe: Probe, heads: list[int]) -> Undo:
        """Note every operation from now on; what is returned undoes it. ``heads``: see ``Probe.timed``."""
        undone: list[Undo] = []
        for number, (place, head) in enumerate(zip(self._places, heads, strict=True), 1):
            try:
                undone.append(_install(place, probe, number, head))
            except (TypeError, AttributeError):
                continue  # it cannot be exchanged: its time stays with the dataset's own

        def undo() -> None:
            probe.mode = OFF  # others may stand upon what this one put there
            _installed.discard(undo)
            while undone:
                undone.pop()()

        _installed.add(undo)
        return undo


_installed: set[Undo] = set()


def _after_fork() -> None:
    """What the parent notes is not the child's business."""
    for undo in list(_installed):
        undo()


os.register_at_fork(after_in_child=_after_fork)


def _of_dataset(dataset: Any, depth: int) -> Iterator[Place]:
    if depth > 8:
        return
    if all(callable(getattr(type(dataset), name, None)) for name in STAGES):
        for stage in STAGES:
            yield Place(stage, dataset, stage, reads=stage == "fetch")
    if isinstance(dataset, Standing):  # it stands for another, whose own operations are not run
        return
    if hasattr(dataset, "samples") and callable(getattr(dataset, "loader", None)):
        yield Place("Loader", dataset, "loader", reads=True)
    for key in HOLDERS:
        if callable(getattr(dataset, key, None)):
            yield Place(_name(getattr(dataset, key)), dataset, key)
    inner = getattr(dataset, "dataset", None)
    for each in [inner, *_several(getattr(dataset, "datasets", None))]:
        if isinstance(each, torch.utils.data.Dataset):
            yield from _of_dataset(each, depth + 1)


def _several(datasets: Any) -> list[Any]:
    if isinstance(datasets, dict):
        return list(datasets.values())
    return list(datasets) if isinstance(datasets, (list, tuple)) else []


def _members(target: Any) -> list[Place] | None:
    """The operations a list of operations consists of; None when it is an operation itself."""
    listed = members(target)
    return None if listed is None else [Place(_name(each.operation), each.holder, each.key) for each in listed]


def _name(target: Any) -> str:
    if isinstance(target, _PLAIN):
        name = target.__name__
        code = getattr(target, "__code__", None)
        return f"{name}:{code.co_firstlineno}" if name == "<lambda>" and code is not None else name
    function = getattr(target, "func", None)  # functools.partial
    return _name(function) if type(target).__name__ == "partial" and function is not None else type(target).__name__


def _told_apart(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _install(place: Place, probe: Probe, number: int, head: int) -> Undo:
    if place.is_stage:
        return _become(place.holder, place.key, place, probe, number, head)
    target = place.get()
    if not isinstance(target, (*_PLAIN, Passing)) and not isinstance(target, torch.jit.ScriptModule):
        try:
            return _become(target, "__call__", place, probe, number, head)
        except TypeError:  # a class that cannot be derived from, or an object that cannot change its class
            if isinstance(target, torch.nn.Module):
                raise
    if isinstance(place.holder, dict):
        raise TypeError
    passing = Passing(target, probe.timed(_read(place, probe, target), number, head))
    place.put(passing)

    def undo() -> None:
        passing.retire()
        if place.get() is passing:
            place.put(passing.innermost())

    return undo


def _read(place: Place, probe: Probe, call: Callable[..., Any]) -> Callable[..., Any]:
    return probe.reading(call) if place.reads else call


def _become(target: Any, method: str, place: Place, probe: Probe, number: int, head: int) -> Undo:
    call = _read(place, probe, getattr(type(target), method))
    return exchanged(target, {method: probe.timed(call, number, head)})
