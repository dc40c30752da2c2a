"""The owner of a module's code: a library, told by its version, or the user, told by what the code says.

The user's is whatever lies neither in the standard library nor among installed distributions: scripts, notebooks,
packages beside them, and editable installs.
"""

import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import site
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

EVERYWHERE = ("numpy", "pillow", "torch", "torchvision")
"""Distributions that make samples behind other libraries' backs: wherever a library is reached, these may be."""


class Library(NamedTuple):
    """Code that is told by a version."""

    name: str
    version: str


PYTHON = Library("python", f"{sys.implementation.name} {platform.python_version()}")


@functools.cache
def library(module: str) -> Library | None:
    """The library that a module belongs to; None: it is the user's."""
    top = module.partition(".")[0]
    if top == "headrace":
        return _own(module)
    file = _file(module)
    if file is None:
        return PYTHON if top in sys.stdlib_module_names and module != "__main__" else None
    if _within(file, _sites()):
        version = _version(top)
        return None if version is None else Library(top, version)
    if _within(file, _standard()):
        return PYTHON
    return Library(module, _content(file)) if file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) else None


def _own(module: str) -> Library:
    """The library that a module of this package is: where it is not installed but edited, the file counts too."""
    file = _file(module)
    edited = "" if file is None or _within(file, _sites()) else _content(file)
    return Library(module if edited else "headrace", f"{_version('headrace')} {edited}")


def everywhere() -> list[Library]:
    """The versions of those that are installed, used or not: so it is the same in every process."""
    return [Library(name, version) for name in EVERYWHERE if (version := _installed(name)) is not None]


def _file(module: str) -> str | None:
    known = sys.modules.get(module)
    file = getattr(known, "__file__", None) if known is not None else _sought(module)
    return os.path.realpath(file) if isinstance(file, str) else None


def _sought(module: str) -> str | None:
    """The place of the package of a module that was not imported yet."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return None if spec is None or not spec.has_location else spec.origin


def _within(file: str, folders: frozenset[str]) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)


@functools.cache
def _sites() -> frozenset[str]:
    paths = sysconfig.get_paths()
    found = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
    return frozenset(map(os.path.realpath, found))


@functools.cache
def _standard() -> frozenset[str]:
    paths = sysconfig.get_paths()
    return frozenset(os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib"))


def _version(top: str) -> str | None:
    """The version as it was installed: what a module says of itself can be asked only once it is imported."""
    found = _installed(_OTHERWISE.get(top, top))
    if found is None:
        owners = _owners().get(top, ())
        found = " ".join(sorted(f"{name} {_installed(name)}" for name in owners)) or None
    return found


_OTHERWISE = {"PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml"}
"""Well-known modules that are not called as their distributions are: looking through all of them takes a while."""


@functools.cache
def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _owners() -> dict[str, list[str]]:
    return {name: list(owners) for name, owners in importlib.metadata.packages_distributions().items()}


@functools.cache
def _content(file: str) -> str:
    try:
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
