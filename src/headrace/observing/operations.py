"""The operations a dataset's samples go through, where it says so: found, and noted while they run.

Known are the members of a ``Compose`` or ``nn.Sequential`` under a dataset's ``transform``, ``target_transform`` or
``transforms``, the ``loader`` and transforms of an image folder, those of a ``StoreDataset``, and the stages ``fetch``,
``decode`` and ``augment`` where a dataset provably is made of them; also in datasets within datasets. Nothing of the
user's is exchanged to see them: the clock is looked at by who calls them, see ``loops`` and ``watching``. What nobody
but the user's own code calls is not told apart from it.
"""

import os
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import getitem, itemgetter
from typing import Any

import torch

from headrace.core.errors import CacheError
from headrace.observing.loops import is_library_call, watch, watch_call
from headrace.ondevice.pixels.bundle import named
from headrace.staging.composition import STAGES, bypassed, has_stages, is_ours
from headrace.staging.folders import is_like_a_folder
from headrace.staging.lists import HOLDERS, Member, members
from headrace.staging.stages import Run, Stages, StandingDataset, staged
from headrace.staging.watching import PIPELINES, Undo
from headrace.trace.probe import OFF, Probe

MOST = 64
"""Operations of one dataset that are told apart."""

_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


class _ListWatch:
    """The watcher of one list: it knows which operation of the dataset's each member is."""

    def __init__(self, listed: Sequence[Any], numbers: Sequence[int]) -> None:
        self._listed, self._numbers = listed, numbers
        self.probe: Probe | None = None
        self.heads: Sequence[int] = ()

    def between(self, operations: Iterator[Any], first: int) -> Iterator[Any]:
        """See ``Watcher``. The list may be another one by now: only what is where it was is known."""
        probe, listed, numbers = self.probe, self._listed, self._numbers
        for position, operation in enumerate(operations, first):
            number = numbers[position] if position < len(listed) and listed[position] is operation else 0
            if not number or probe is None or probe.mode == OFF:
                yield operation
                continue
            begun = probe.enter(number)
            try:
                yield operation
            finally:
                probe.leave(number, self.heads[number - 1], begun)


class _HolderWatch:
    """The watcher of an object that holds operations as attributes: it knows which each is."""

    def __init__(self, numbers: dict[str, tuple[Any, int]], reading: str) -> None:
        self._numbers, self._reading = numbers, reading
        self.probe: Probe | None = None
        self.heads: Sequence[int] = ()

    def __call__(self, name: str, value: Any) -> Any:
        known, number = self._numbers.get(name, (None, 0))
        if not number or known is not value or self.probe is None:
            return value
        call = self.probe.reading(value) if name == self._reading else value
        return self.probe.timed(call, number, self.heads[number - 1])


class _CallWatch:
    """The watcher of an operation that stands alone."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.probe: Probe | None = None
        self.heads: Sequence[int] = ()

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self.probe is None else self.probe.timed(call, self._number, self.heads[self._number - 1])


class Operations:
    """The operations of one dataset; ``names`` in the order in which they were found, numbered from 1 on."""

    def __init__(self, dataset: Any) -> None:
        """Looks, changes nothing."""
        self._found: list[str] = []
        self._known: dict[Any, tuple[Any, int]] = {}
        self._stages: dict[tuple[int, str], int] = {}
        self._lists: list[tuple[Any, _ListWatch]] = []
        self._pipelines: list[tuple[Any, _ListWatch]] = []
        self._holders: list[tuple[Any, _HolderWatch]] = []
        self._alone: list[tuple[Any, _CallWatch]] = []
        self._dataset = dataset
        self._of_dataset(dataset, 0)
        self.names = _told_apart(self._found)
        self._probe: Probe | None = None
        self._heads: Sequence[int] = ()

    def install(self, probe: Probe, heads: list[int]) -> Undo:
        """Note every operation from now on; what is returned undoes it. ``heads``: see ``Probe.timed``."""
        self._probe, self._heads = probe, heads
        for watcher in map(itemgetter(1), (*self._lists, *self._pipelines, *self._holders, *self._alone)):
            watcher.probe, watcher.heads = probe, heads
        undone = [PIPELINES.add(*each) for each in self._pipelines]
        found = [
            *(watch(*each) for each in (*self._lists, *self._holders)),
            *(watch_call(*each) for each in self._alone),
        ]
        undone += [ending for ending in found if ending is not None]

        def undo() -> None:
            probe.mode = OFF
            self._probe = None
            _installed.discard(undo)
            while undone:
                undone.pop()()

        _installed.add(undo)
        return undo

    def stages(self) -> Stages | None:
        """The dataset's, noted; None where it is not made of stages, or only a part of it is."""
        try:
            return staged(self._dataset, ("", "", ""), self.noted) if self._stages else None
        except CacheError:
            return None

    def getter(self) -> Callable[[Any], Any]:
        """``dataset[index]``, of which the stages are noted where it is made of them."""
        dataset, made = self._dataset, self.stages()
        if made is None:
            return partial(getitem, dataset)
        count = len(dataset)

        def get(index: Any) -> Any:
            if type(index) is not int or not 0 <= index < count:
                return dataset[index]
            return named(index, made.run(index, index))

        return get

    def noted(self, dataset: Any, name: str, run: Run) -> Run:
        """A stage of one of the datasets, noted."""
        number = self._stages.get((id(dataset), name))
        if number is None or self._probe is None:
            return run
        call = self._probe.reading(run) if name == "fetch" else run
        return self._probe.timed(call, number, self._heads[number - 1])

    def _of_dataset(self, dataset: Any, depth: int) -> None:
        if depth > 8:
            return
        if has_stages(dataset) and bypassed(dataset) is None:
            for stage in STAGES:
                self._stages[id(dataset), stage] = self._number(stage)
        if isinstance(dataset, StandingDataset):  # its own operations are not run
            return
        if is_ours(dataset) or is_like_a_folder(dataset):
            if is_like_a_folder(dataset):
                self._holder(dataset, ("loader", "transform", "target_transform"))
            self._pipeline(dataset, "transform")
            self._pipeline(dataset, "target_transform")
            self._list(dataset.transforms)
        else:
            for key in HOLDERS:
                target = getattr(dataset, key, None)
                self._list(target)
                if target is not None and members(target) is None and is_library_call(target):
                    self._alone.append((target, _CallWatch(self._operation(Member(dataset, key, target)))))
        inner = getattr(dataset, "dataset", None)
        for each in [inner, *_several(getattr(dataset, "datasets", None))]:
            if isinstance(each, torch.utils.data.Dataset):
                self._of_dataset(each, depth + 1)

    def _list(self, target: Any) -> None:
        """A list that its library runs, with the lists in it."""
        listed = None if any(target is known for known, _ in (*self._lists, *self._holders)) else members(target)
        if listed is None:
            return
        if type(target).__name__ == "StandardTransform":
            self._holder(target, HOLDERS)
            return
        numbers = [0 if members(each.operation) is not None else self._operation(each) for each in listed]
        self._lists.append((target, _ListWatch([each.operation for each in listed], numbers)))
        for each in listed:
            self._list(each.operation)

    def _holder(self, holder: Any, keys: Sequence[str]) -> None:
        """An object whose library calls these attributes of it."""
        numbers: dict[str, tuple[Any, int]] = {}
        self._holders.append((holder, _HolderWatch(numbers, "loader")))
        for key in keys:
            target = getattr(holder, key, None)
            if callable(target) and members(target) is None:
                place = Member(holder, key, target)
                numbers[key] = target, self._operation(place, "Loader" if key == "loader" else None)
            self._list(target)

    def _pipeline(self, holder: Any, key: str) -> None:
        """A transform whose operations we apply ourselves, lists within lists opened."""
        transform = getattr(holder, key)
        if transform is None or any(transform is known for known, _ in self._pipelines):
            return
        found = list(_flat(Member(holder, key, transform)))
        numbers = [self._operation(each) for each in found]
        self._pipelines.append((transform, _ListWatch([each.operation for each in found], numbers)))
        for each in found:
            self._list(each.operation)

    def _operation(self, member: Member, name: str | None = None) -> int:
        """The number of an operation: an object has one wherever it stands, a function one at each place."""
        target = member.operation
        if not callable(target):
            return 0
        place = (id(target), id(member.holder), member.key) if isinstance(target, _PLAIN) else id(target)
        if place not in self._known:
            self._known[place] = target, self._number(name or _name(target))
        return self._known[place][1]

    def _number(self, name: str) -> int:
        """A new one; 0 where there are too many."""
        if len(self._found) >= MOST:
            return 0
        self._found.append(name)
        return len(self._found)


_installed: set[Undo] = set()


def _after_fork() -> None:
    """Undo all watching in a forked child, to which the parent's notes are of no use."""
    for undo in list(_installed):
        undo()


os.register_at_fork(after_in_child=_after_fork)


def _flat(member: Member) -> Iterator[Member]:
    """The operations as ``steps`` gives them, each with its place."""
    listed = members(member.operation)
    if listed is None or type(member.operation).__name__ == "StandardTransform":
        yield member
        return
    for each in listed:
        yield from _flat(each)


def _several(datasets: Any) -> list[Any]:
    if isinstance(datasets, dict):
        return list(datasets.values())
    return list(datasets) if isinstance(datasets, (list, tuple)) else []


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
