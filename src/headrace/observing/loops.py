"""The loops of torch and torchvision over a user's operations, run so that each operation's time can be seen.

While somebody looks, a library's own function is given another ``self``: one that hands out the same operations, and
looks at the clock between them. An operation that stands alone is seen by the function of its library's class. Nothing
of the user's is replaced, wrapped or derived from: neither transforms nor lists, neither datasets nor their classes.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import torch

from headrace.staging.lists import is_bare
from headrace.staging.watching import Undo, Watched, WatchedLists

Timed = Callable[[str, Any], Any]
"""Makes of an attribute of that name, and its value, what takes as long and is noted."""


class _Loop(NamedTuple):
    """A function of a library that runs operations of the object that it is a method of."""

    module: str
    kind: str
    method: str
    names: frozenset[str]
    """What it may read of its object; another version that reads more is left alone."""


_LISTS = (
    _Loop("torchvision.transforms.transforms", "Compose", "__call__", frozenset({"transforms"})),
    _Loop("torchvision.transforms.v2", "Compose", "forward", frozenset({"transforms", "len"})),
    _Loop("torch.nn", "Sequential", "forward", frozenset()),
)
_HOLDERS = (
    _Loop("torchvision.datasets.vision", "StandardTransform", "__call__", frozenset({"transform", "target_transform"})),
    _Loop(
        "torchvision.datasets.folder",
        "DatasetFolder",
        "__getitem__",
        frozenset({"samples", "loader", "transform", "target_transform"}),
    ),
)


class _ListShown:
    """Stands for a list of operations before its own library's loop."""

    def __init__(self, operations: Watched) -> None:
        self.transforms = operations

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)


class _HolderShown:
    """Stands for an object that holds operations before its own library's function."""

    def __init__(self, holder: Any, timed: Timed) -> None:
        self._holder, self._timed = holder, timed

    def __getattr__(self, name: str) -> Any:
        return self._timed(name, getattr(self._holder, name))


class _Loops:
    """The library loops that are exchanged in this process, and the objects for which they are exchanged."""

    def __init__(self) -> None:
        self.lists = WatchedLists()
        self._holders: dict[int, tuple[Any, list[Any]]] = {}
        self._calls: dict[int, tuple[Any, list[Any]]] = {}
        self._exchanged: dict[_Loop, tuple[type, Any]] = {}
        self._users: dict[_Loop, int] = {}

    def watch(self, holder: Any, watcher: Any) -> Undo | None:
        """Look at a list, or, with a ``Timed``, at an object that holds operations. None where its library's loop is
        not one that is known.
        """
        for loop in (*_LISTS, *_HOLDERS):
            kind = getattr(sys.modules.get(loop.module), loop.kind, None)
            if kind is not None and isinstance(holder, kind) and self._ready(loop, kind):
                break
        else:
            return None
        held = self.lists.add(holder, watcher) if loop in _LISTS else _registered(self._holders, holder, watcher)
        return self._used(loop, held)

    def _used(self, loop: _Loop, ending: Undo) -> Undo:
        """The library's function is put back by the last one who ends it."""
        self._users[loop] = self._users.get(loop, 0) + 1

        def undo() -> None:
            ending()
            self._users[loop] -= 1
            if not self._users[loop]:
                kind, original = self._exchanged.pop(loop)
                setattr(kind, loop.method, original)

        return undo

    def watch_call(self, operation: Any, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo | None:
        """Look at one operation by itself. None where what it does is not in torch's or torchvision's own class."""
        if not is_library_call(operation):
            return None
        kind, method = _called(operation)
        loop = _Loop(kind.__module__, kind.__qualname__, method, frozenset())
        if loop not in self._exchanged:
            original = vars(kind)[method]
            calls = self._calls

            @functools.wraps(original)
            def run(self: Any, *args: Any, **kwargs: Any) -> Any:
                call = functools.partial(original, self)
                for noting in calls.get(id(self), (None, ()))[1]:
                    call = noting(call)
                return call(*args, **kwargs)

            self._exchanged[loop] = kind, original
            setattr(kind, method, run)
        return self._used(loop, _registered(self._calls, operation, timed))

    def _ready(self, loop: _Loop, kind: type) -> bool:
        if loop in self._exchanged:
            return True
        original = vars(kind).get(loop.method)
        code = getattr(original, "__code__", None)
        if code is None or not set(code.co_names) <= loop.names:
            return False
        looked = self._of_list(original) if loop in _LISTS else self._of_holder(original)
        self._exchanged[loop] = (kind, original)
        setattr(kind, loop.method, looked)
        return True

    def _of_list(self, original: Any) -> Any:
        lists = self.lists

        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            watchers = lists.watchers(self)
            if not watchers:
                return original(self, *args, **kwargs)
            operations = self if isinstance(self, torch.nn.Sequential) else self.transforms
            with closing(Watched(iter(operations), watchers)) as watched:
                return original(_ListShown(watched), *args, **kwargs)

        return run

    def _of_holder(self, original: Any) -> Any:
        holders = self._holders

        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            shown = self
            for timed in holders.get(id(self), (None, ()))[1]:
                shown = _HolderShown(shown, timed)
            return original(shown, *args, **kwargs)

        return run


def is_library_call(operation: Any) -> bool:
    """True if what an operation does is written in torch's or torchvision's own class."""
    return _called(operation)[0].__module__.startswith(("torchvision.", "torch.nn.")) and is_bare(operation)


def _called(operation: Any) -> tuple[type, str]:
    """The class that has what calling it comes to, and the method's name."""
    method = "forward" if isinstance(operation, torch.nn.Module) else "__call__"
    return next((each for each in type(operation).__mro__ if method in vars(each)), object), method


def _registered(held: dict[int, tuple[Any, list[Any]]], which: Any, watcher: Any) -> Undo:
    held.setdefault(id(which), (which, []))[1].append(watcher)

    def undo() -> None:
        found = held[id(which)][1]
        found.remove(watcher)
        if not found:
            del held[id(which)]

    return undo


_loops = _Loops()
watch, watch_call = _loops.watch, _loops.watch_call
