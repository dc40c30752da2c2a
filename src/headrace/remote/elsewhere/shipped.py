"""The dataset on its way to other hosts, and what must be the same there for its samples to be the same."""

import contextlib
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from headrace.cache.fingerprints.code_owners import library
from headrace.cache.fingerprints.fingerprint import fingerprint
from headrace.core.errors import CacheError, RemoteError

PACKAGES = ("headrace", "torch", "numpy")
"""Packages whose versions decide what a sample is, beside the dataset's own."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The versions and code that samples are made with, in a few lines."""

    versions: dict[str, str]
    code: dict[str, str]
    """The user's classes and functions that the dataset is made of, by their full names: the fingerprint of each."""

    def differences(self) -> list[str]:
        """The differences in this process: a line for each, which names it."""
        found = [
            f"{name} is {there} with the trainer and {here} here"
            for name, there in self.versions.items()
            if (here := _version(name)) != there
        ]
        for name, there in self.code.items():
            thing = _named(name)
            if thing is None:
                found.append(f"there is no {name} here")
            elif _digest(thing) != there:
                found.append(f"the code of {name}, or what it reaches, is another")
        return found


def _version(name: str) -> str:
    if name == "python":
        return "{}.{}".format(*sys.version_info)
    return version(name)


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError):
        return None
    return found


def _digest(thing: Any) -> str | None:
    try:
        return fingerprint(thing, asks=False)
    except CacheError:
        return None  # it cannot be told; samples are compared all the same


class _Noting(pickle.Pickler):
    """A pickler that notes which classes and functions an object needs wherever it is unpickled."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, 5)
        self.named: dict[str, Any] = {}

    def reducer_override(self, value: Any) -> Any:
        thing = value if isinstance(value, (type, types.FunctionType)) else type(value)
        if library(thing.__module__) is None:
            self.named.setdefault(f"{thing.__module__}:{thing.__qualname__}", thing)
        return NotImplemented


@dataclass(frozen=True, slots=True)
class DatasetBundle:
    """A dataset and its ``worker_init_fn`` as bytes, for processes of this run alone."""

    packed: bytes
    facts: Facts
    pickled: bool = False
    """Whether samples that no entry can hold are carried as pickles."""


def packed(
    dataset: Any,
    worker_init_fn: Callable[[int], Any] | None,
    by_value: Callable[[Any], bytes],
    *,
    pickled: bool = False,
) -> DatasetBundle:
    """A bundle. ``by_value`` pickles what only the trainer's own program defines, and takes that along.

    ``pickled``: samples that no entry can hold are to be carried as pickles.

    Raises ``RemoteError`` for what cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _Noting(stream)
    with contextlib.suppress(Exception):  # a closure, say: tried in the other way
        pickler.dump((dataset, worker_init_fn))
    content = stream.getvalue()
    own = [name for name in pickler.named if name.partition(":")[0] in {"__main__", "__mp_main__"}]
    if own or not content.endswith(pickle.STOP):
        try:
            content = by_value((dataset, worker_init_fn))
        except Exception as error:
            msg = f"remote=: the dataset, or worker_init_fn, cannot be pickled ({type(error).__name__}: {error})"
            raise RemoteError(
                msg + "; give it what can travel, and open files and connections in the worker"
            ) from error
    code = {}
    for name, thing in pickler.named.items():
        digest = None if name in own or "<" in name else _digest(thing)
        if digest is not None:
            code[name] = digest
    return DatasetBundle(content, Facts({name: _version(name) for name in ("python", *PACKAGES)}, code), pickled)
